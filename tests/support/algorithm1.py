"""GraVAC's Algorithm 1 in plain Python, to read beside the paper. No job runs it.

``variant="paper"`` (``printed.py``) does the same with records and reasons, and its test compares the two. Gradients,
residuals and the moving averages of gains are the agents' part and left out.
"""

from dataclasses import dataclass, field


@dataclass
class Algorithm1:
    """The search of one rank. The paper names no agreement of ranks, so each could send something else."""

    cf_min: float  # θ_min: always compressed, and raised in the search
    cf_max: float  # θ_max
    epsilon: float  # ε: the least gain that is sent
    omega: (
        float  # ω: values this close, relatively, are equal. 1 % in the paper, which is far below the noise
    )
    exponential: bool = True  # the scaling policy; otherwise geometric
    multiplier: float = 2.0  # θ_s
    ideal: float | None = None  # the CF that the search returned
    throughput: dict[float, float] = field(default_factory=dict)  # T_comp by CF

    @property
    def candidate(self) -> float:
        """θ_s · θ_min, at most θ_max. It is compressed in every step, also when the search has ended."""
        return self.ideal or self._times_minimum(self.multiplier)

    def gate(self, gain_min: float, gain_candidate: float) -> float:
        """Return the CF that a step sends: the candidate, else the minimum, else dense."""
        if gain_candidate >= self.epsilon:
            return self.candidate
        return self.cf_min if gain_min >= self.epsilon else 1.0

    def record(self, cf: float, samples_per_second: float, gain: float) -> None:
        """Keep T_comp = T_sys · gain of what was sent.

        The newest value overwrites the others. A CF that never passes the gate has none, and a dense step does not
        count the compression that it did in vain.
        """
        self.throughput[cf] = samples_per_second * gain

    def check(self, gain_min: float, gain_candidate: float) -> None:
        """Run ``CheckGraVAC`` at the end of a window, in the printed order."""
        if self.ideal is not None:  # the paper's Fig. 10: a CF that was returned is final
            return
        # a. Scale up.
        grown = self.multiplier**2 if self.exponential else self.multiplier * 2
        self.multiplier = min(grown, self.cf_max / self.cf_min)
        # b. Equal gains raise the minimum: to a CF that nobody evaluated, because (a) came first. The multiplier is
        # not made smaller for it, so the next candidate jumps, too.
        if _close(gain_candidate, gain_min, self.omega):
            self.cf_min = self._times_minimum(self.multiplier)
        # c. Equal throughputs end the search at the second largest, though the prose says the lower CF. The two need
        # not be neighbors, so this may happen by accident.
        largest = sorted(self.throughput, key=lambda cf: (self.throughput[cf], cf), reverse=True)
        if len(largest) > 1 and _close(self.throughput[largest[0]], self.throughput[largest[1]], self.omega):
            self.ideal = largest[1]
            self.cf_min = min(self.cf_min, self.ideal)

    def _times_minimum(self, multiplier: float) -> float:
        return self.cf_max if multiplier >= self.cf_max / self.cf_min else multiplier * self.cf_min


def _close(value: float, base: float, omega: float) -> bool:
    return base > 0 and abs(value - base) / base <= omega
