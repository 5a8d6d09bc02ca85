"""Clips exchanged gradients by the norm that the mean of the raw gradients has.

The mean that comes out of a lossy exchange can have a much larger norm than the gradient that plain DDP would have
clipped, from noise that the error memory takes back in later steps. Clipped by that norm, the parameters move a
fraction of the way that dense gradients would move them. So the smaller of the two norms counts: dense gradients are
clipped as by torch, and no gradient is cut further than torch would cut it.

The norm of the mean of the raw gradients is an estimate with much noise. What an exchange adds to that mean or takes
from it is what the residual gives and keeps, so where the residual is small, so is the difference of the two norms, and
the estimate counts only as far as that allows: gradients rounded to 8 bits are clipped as dense ones.

Of a step that is multiplied by c, the mean that arrives is. What waits of its gradient g was to be c · g too, and will
be multiplied by the c of the step in which it arrives, which is not known: it is taken to be ĉ, a smoothed c. So it
waits as c/ĉ · g, and when ĉ becomes ĉ', all that waits is multiplied by ĉ/ĉ', as when a learning rate changes. Where
all steps are cut alike nothing changes, and of a spike as much waits as was sent. Waiting as c · g and multiplied by c
again, late gradients would count c² where every step is cut.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gravac_agent.exchange.raw_mean import mean_energies
from gravac_agent.exchange.tick import StepSums

SMOOTHING = 0.1
"""Weight of the newest step in the averages."""
MOST_OFF = 0.5
"""Share of the exchanged mean's energy up to which the residual limits the estimate. Beyond it little would be left but
the errors of both."""
SPIKE = 0.5
"""A gradient is a spike where it is cut to less than this share of what is usual."""
NOT_WORTH = 1e-3
"""Change of the factor, relative to what is usual, for which no residual is gone through."""


@dataclass(frozen=True, slots=True)
class Clipped:
    """What clipping did.

    Attributes:
        norm: Norm of the gradients before, as ``torch.nn.utils.clip_grad_norm_`` returns it.
        share: What was not sent of this step's gradients is to wait as ``share`` times them; see ``Memory.cut``.
        rest: Argument of ``Memory.cut``.
        turn: Argument of ``Memory.cut``.
    """

    norm: Tensor
    share: float = 1.0
    rest: float = 1.0
    turn: float = 1.0

    @property
    def reaches_memory(self) -> bool:
        """Whether the error memories are to be cut."""
        return (self.share, self.rest, self.turn) != (1.0, 1.0, 1.0)


class Clipper:
    """Clips the gradients of one job. It is the same on all ranks, as all that it is given is.

    Args:
        ranks: Ranks that average their gradients.

    Attributes:
        in_use: Whether gradients were ever clipped.
        residual_sq: ‖mean residual‖² at most, after the newest finite step: over ranks it is at most the mean of ‖·‖².
            While nothing is clipped, it is all that is followed, without ``end_step``.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks, self.in_use = ranks, False
        self._mean_sq = self._single_sq = 0.0  # smoothed, of the sampled elements
        self._usual: float | None = None  # smoothed factor that gradients are multiplied by
        self._dense_norm: float | None = None  # of the exchanged step; None: that of the gradients themselves
        self.residual_sq = 0.0
        self._off_sq = math.inf  # ‖exchanged mean − mean of the raw gradients‖²
        self._fresh = 0.0  # share of this step's gradient in what was compressed, by energy
        self._counts = True  # a step was exchanged since the last call, and counts

    def end_step(
        self, sums: StepSums, numbers: Sequence[float], raw: bool, amplification: float = 1.0
    ) -> None:
        """Take in what an exchange measured.

        Args:
            sums: Its sums over ranks.
            numbers: ``RawMeanMeter.pop`` of all ranks, added up.
            raw: It sent the raw gradients, so that what came out is their mean.
            amplification: What a gradient amounts to in what was sent, see ``Memory.amplification``.
        """
        self._dense_norm, self._fresh, self._counts = None, 0.0, not sums.nonfinite
        if sums.nonfinite:
            return
        # How much the residual gave to the exchange and kept of it. The errors of two steps count as independent.
        before, self.residual_sq = self.residual_sq, max(0.0, sums.residual_sq) / self._ranks
        self._off_sq = before + self.residual_sq if amplification == 1.0 else math.inf
        found = mean_energies(numbers, self._ranks)
        if found is None:
            return
        keep = 1.0 - SMOOTHING if self._single_sq > 0.0 else 0.0
        self._mean_sq = keep * self._mean_sq + (1.0 - keep) * found[0]
        self._single_sq = keep * self._single_sq + (1.0 - keep) * found[1]
        if not raw and sums.gradient_sq > 0.0:
            share = min(1.0, self._mean_sq / self._single_sq)  # a mean is no longer than what it is made of
            self._dense_norm = amplification * math.sqrt(share * sums.gradient_sq / self._ranks)
            self._fresh = min(1.0, sums.gradient_sq / max(sums.compensated_sq, sums.gradient_sq))

    def clip(
        self,
        parameters: Iterable[nn.Parameter],
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
        scale: float = 1.0,
    ) -> Clipped:
        """Clip the gradients of the last exchange; as torch does where it sent raw gradients, or there was none since.

        Args:
            parameters: Their gradients are clipped, in place.
            max_norm: See ``torch.nn.utils.clip_grad_norm_``, and so the next three.
            norm_type: For norms other than 2, torch's clipping is used.
            error_if_nonfinite: See there.
            foreach: See there.
            scale: Loss scale that the gradients had in the exchange and do not have any more.
        """
        parameters = list(parameters)
        gradients = [param.grad for param in parameters if param.grad is not None]
        norm = nn.utils.get_total_norm(gradients, norm_type, error_if_nonfinite, foreach)
        if isinstance(norm, DTensor):  # of sharded gradients
            norm = norm.full_tensor()
        dense_norm, self._dense_norm = self._dense_norm, None
        counts, value = norm, float(norm)
        if dense_norm is not None and float(norm_type) == 2.0 and dense_norm / scale < value < math.inf:
            off_sq = self._off_sq / (scale * scale)
            least = math.sqrt(value * value - off_sq) if off_sq <= MOST_OFF * value * value else 0.0
            counts = torch.full_like(norm, max(dense_norm / scale, least))
        nn.utils.clip_grads_with_norm_(parameters, max_norm, counts, foreach)
        if not math.isfinite(value):
            return Clipped(norm)
        return self._reach(norm, min(1.0, float(max_norm) / (float(counts) + 1e-6)))

    @property
    def cuts(self) -> bool:
        """Whether what waits has ever been cut, so that memories should know what waited before each step."""
        return self._usual is not None and self._usual != 1.0

    def state(self) -> list[float]:
        """Return the averages and the residual's size, for a checkpoint; NaN: none yet."""
        usual = math.nan if self._usual is None else self._usual
        return [self._mean_sq, self._single_sq, usual, self.residual_sq]

    def restore(self, state: Sequence[float]) -> None:
        """Take over a checkpoint's averages."""
        self._mean_sq, self._single_sq, usual, self.residual_sq = state
        self._usual = None if math.isnan(usual) else usual
        self.in_use = self._usual is not None

    def _reach(self, norm: Tensor, factor: float) -> Clipped:
        """Return what is to be done to the residual after gradients were multiplied by ``factor``.

        Of an element that was sent in part, gradient and residual are not told apart. What is left of it is cut only
        after a spike, as the part that was sent was, as far as what was compressed was made of this step's gradient.
        """
        fresh, self._fresh, self.in_use = self._fresh, 0.0, True
        counts, self._counts = self._counts, False
        if not counts:
            return Clipped(norm)
        if self._usual is None:
            self._usual = factor
        usual = self._usual
        if usual <= 0.0 or factor <= 0.0 or abs(factor - usual) <= NOT_WORTH * usual:
            return Clipped(norm)
        self._usual += SMOOTHING * (factor - usual)
        share, turn = factor / usual, usual / self._usual
        self.residual_sq *= turn * turn
        return Clipped(norm, share, 1.0 if share >= SPIKE else 1.0 - (1.0 - share) * fresh, turn)
