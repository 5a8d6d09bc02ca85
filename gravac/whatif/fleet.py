"""Window reports of ranks that do not exist, as the model has them: for the real policies and the real controller."""

from collections.abc import Sequence
from random import Random

from gravac.protocol import (
    Decision,
    GainCurve,
    GainSums,
    JobSpec,
    LevelSums,
    PhaseSeconds,
    RankRow,
    SmoothedGain,
    Spread,
    WindowReport,
    quantiles,
)
from gravac.whatif.gains import GainModel
from gravac.whatif.predict import Foretold, Oracle, Scenario

SETTLE_STEPS = 5
JITTER = 0.03
"""Standard deviation of a rank's computing over a window, relative."""
STRAGGLER = 1.3
"""Times as long as the others the last rank computes."""


class GainUnknown(ValueError):
    """The policy wants a CF of which the trace does not tell what it keeps."""


class Fleet:
    """All ranks of a job in one scenario. The same arguments give the same reports.

    ``rows``: how many ranks the reports list; 0: neither they nor the spread over ranks are made, which takes a while
    for thousands. Ranks differ by chance; the last one is slow.
    """

    def __init__(
        self, oracle: Oracle, scenario: Scenario, spec: JobSpec, rows: int = 0, seed: int = 0
    ) -> None:
        self.spec = spec
        self._oracle, self._scenario, self._rows = oracle, scenario, rows
        self._model: GainModel = oracle.gains(scenario.compressor)
        self._random = Random(seed)
        self._foretold: dict[float, Foretold] = {}

    def at(self, cf: float) -> Foretold:
        """A step at ``cf``."""
        if cf not in self._foretold:
            self._foretold[cf] = self._oracle.at(self._scenario, cf)
        return self._foretold[cf]

    def gain(self, cf: float) -> float:
        """What ``cf`` keeps. Raises GainUnknown."""
        told = self.at(cf).gain
        if told.likely is None:
            raise GainUnknown(f"the policy asks for CF {cf:g}, of which the gain cannot be told: {told.why}")
        return told.likely

    def sent(self, decision: Decision) -> float:
        """The CF the gate lets through."""
        for cf in (decision.cf_candidate, decision.cf_minimum):
            if cf > 1.0 and self.gain(cf) >= decision.epsilon:
                return cf
        return 1.0

    def report(self, window: int, decision: Decision) -> WindowReport:
        """A window under ``decision`` from its first step on. Its sums tell the gain; what is owed they do not."""
        cf, steps, ranks = self.sent(decision), self.spec.window_steps, self._scenario.ranks
        told = self.at(cf)
        seconds = steps * told.step.seconds
        measured = sorted({decision.cf_minimum, decision.cf_candidate} - {1.0})
        samples = round(steps * ranks * self._oracle.recording.samples_per_step)
        everyone = [self._row(rank, told, samples // ranks) for rank in range(ranks if self._rows else 0)]
        phases = _phases(told, steps)
        dense = 4 * self.spec.model.elements * steps * ranks
        payload = dense if cf == 1.0 else round(told.volume.payload_bytes * steps * ranks)
        return WindowReport(
            job=self.spec.job,
            incarnation=self.spec.incarnation,
            window=window,
            first_step=window * steps,
            last_step=(window + 1) * steps - 1,
            epoch=decision.epoch,
            phase=decision.phase,
            cf=cf,
            seconds=seconds,
            samples=samples,
            dense_bytes=dense,
            payload_bytes=payload,
            loss=None,
            nonfinite_steps=0,
            failed_steps=0,
            levels=(self._level(decision, told, dense, payload),),
            gains=tuple(SmoothedGain(cf=one, gain=self.gain(one)) for one in measured),
            phases=phases,
            spread=_spread(everyone) if everyone else None,
            ranks=tuple(everyone[: self._rows]),
            curve=self._curve(cf),
        )

    def _level(self, decision: Decision, told: Foretold, dense: int, payload: int) -> LevelSums:
        steps = self.spec.window_steps
        energy = float(steps * self._scenario.ranks)
        kept = energy * self.gain(told.cf)
        sums = GainSums(
            steps=steps,
            gradient_sq=energy,
            compensated_sq=energy,
            sent_sq=kept,
            minimum_sq=energy * self.gain(decision.cf_minimum),
            candidate_sq=energy * self.gain(decision.cf_candidate),
            residual_sq=energy - kept,
            residual_dot_gradient=0.0,
        )
        return LevelSums(
            epoch=decision.epoch,
            cf=told.cf,
            steps=steps,
            settled_steps=max(1, steps - SETTLE_STEPS),
            step_seconds_median=told.step.seconds,
            exposed_seconds_median=told.step.exposed,
            dense_bytes=dense,
            payload_bytes=payload,
            sums=sums,
        )

    def _curve(self, cf: float) -> GainCurve | None:
        """That of the nearest CF at which one was drawn."""
        if not self._model.curves:
            return None
        near = min(self._model.curves, key=lambda base: max(cf / base, base / cf))
        gains = tuple(None if gain is None else min(1.0, gain) for gain in self._model.curves[near])
        return GainCurve(steps=3, own=True, gains=gains)

    def _row(self, rank: int, told: Foretold, samples: int) -> RankRow:
        """One rank: what it computes longer it waits less, as whole steps take equally long."""
        steps = self.spec.window_steps
        pace = max(0.5, self._random.gauss(1.0, JITTER)) * (
            STRAGGLER if rank == self._scenario.ranks - 1 else 1.0
        )
        even = _phases(told, steps)
        compute = even.compute * pace
        phases = even.model_copy(
            update={"compute": compute, "communicate": max(0.0, even.communicate + even.compute - compute)}
        )
        return RankRow(
            rank=rank,
            steps=steps,
            step_seconds=sum(phases.model_dump().values()),
            phases=phases,
            samples=samples,
            nonfinite_steps=0,
            failed_steps=0,
            memory_bytes=4 * self.spec.model.elements,
            agent_cpu_seconds=0.1 * steps * told.step.seconds,
        )


def _phases(told: Foretold, steps: int) -> PhaseSeconds:
    return PhaseSeconds(
        data_wait=0.0,
        compute=steps * told.step.compute,
        compress=steps * told.step.compress,
        communicate=steps * told.step.exposed,
        decompress=steps * told.step.decompress,
    )


def _spread(rows: Sequence[RankRow]) -> Spread:
    times = {"step_seconds": [row.step_seconds for row in rows]}
    times |= {name: [getattr(row.phases, name) for row in rows] for name in PhaseSeconds.model_fields}
    return Spread(**{name: quantiles(values) for name, values in times.items()})
