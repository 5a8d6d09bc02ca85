"""Gradient + residual in one pass that also picks the candidates for sending, by a threshold from the step before.

Thresholds hardly change from one step to the next (Li and Hoefler 2022, Ok-Topk, §3.1). Ok-Topk reuses a threshold as
it is. Here one that is a little too low gives candidates, and the k largest of them are exactly the k largest of all.
"""

import math
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from gravac.kernels import backend
from gravac.kernels.histogram import Tally, check_terms
from gravac.kernels.reference import COARSE_SHIFT

SLACK = 0.2
"""Share by which all magnitudes may be larger or smaller than predicted. If they are exponential, k of n elements lie
above ln(n/k) times their mean, and a threshold that is lower by this share lets (n/k)^SLACK times as many pass."""
STEADY = 0.5
"""Share of the last error that the next threshold corrects. Not all of it, because steps also differ by chance."""
LEAST_CF = 8.0
"""Least CF at which candidates are used. Below it most elements would be candidates, and counting costs little more."""


@dataclass(frozen=True, slots=True)
class Sifted:
    """The result of one pass.

    ``places`` (int32, ascending) and ``values`` (float32) of the candidates are valid until the next pass with the same
    room. They are None if the threshold was off, or if a number is not finite.
    """

    energy: float
    """‖p‖²; infinite where an element of p is not finite."""
    gradient_sq: float
    """‖g‖²."""
    residual_dot_gradient: float
    """⟨e, g⟩ of the residual before the step."""
    places: Tensor | None
    values: Tensor | None


_LEAST_BYTES = 1 << 18
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


def mapped(numel: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Return zeros of shape ``(numel,)`` for a large buffer that stays, in a mapping of its own.

    It goes back to the system when it is freed. In a thread's heap, what is freed around it would remain resident.
    """
    nbytes = numel * dtype.itemsize
    if nbytes < _LEAST_BYTES or torch.device(device).type != "cpu":
        return torch.zeros(numel, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, nbytes, **_PRIVATE), dtype=dtype)


class CandidateBuffers:
    """Buffers for candidates, as large as the largest pass needs. Sifters that take turns share one."""

    def __init__(self) -> None:
        self.places, self.values = (
            torch.empty(0, dtype=torch.int32, device="cpu"),
            torch.empty(0, dtype=torch.float32, device="cpu"),
        )

    def at_least(self, count: int) -> None:
        """Make room for ``count`` candidates. Those of the last pass are lost."""
        if count > self.places.numel():
            self.places, self.values = mapped(count, torch.int32), mapped(count, torch.float32)


class Sifter:
    """Picks candidates for the k largest of a tensor of n elements that comes again every step.

    Args:
        k: Elements to be sent.
        numel: n.
        room: Receives the candidates; by default, buffers of its own.
    """

    def __init__(self, k: int, numel: int, buffers: CandidateBuffers | None = None) -> None:
        self.k, self.numel = k, numel
        self.wanted = min(numel, math.ceil(k * (numel / k) ** SLACK))
        """Candidates aimed at."""
        self.level = math.nan
        """Lowest magnitude of a candidate in the next pass; NaN while there is no guess."""
        self._most = min(numel, math.ceil(k * (numel / k) ** (2 * SLACK)))
        self._buffers = CandidateBuffers() if buffers is None else buffers
        self._buffers.at_least(self._most)

    def takes(self, gradient: Tensor) -> bool:
        """Return whether ``sift`` can be called: a threshold is known, and compiled kernels take such a tensor."""
        return (
            self.level > 0.0
            and gradient.dtype == torch.float32
            and backend.host is not None
            and gradient.is_cpu
            and gradient.is_contiguous()
        )

    def sift(self, gradient: Tensor, residual: Tensor | None, out: Tensor, share: float = 1.0) -> Sifted:
        """Compute p = gradient + share · residual as ``tally`` does, measure it and pick the candidates.

        If ``out`` is the residual itself, elements of the gradient that are not finite count as 0 in p, but not in the
        energies.

        Args:
            gradient: float32, shape ``(n,)``.
            residual: float32, shape ``(n,)``; None for none.
            out: float32 buffer for p, shape ``(n,)``.
            share: Factor of the residual.

        Raises:
            ValueError: Shapes, sizes or dtypes do not fit, or ``takes`` is False.
        """
        host, level, numel = backend.host, self.level, self.numel
        terms = (gradient, out) if residual is None else (gradient, out, residual)
        for term in terms:
            if (
                term.dtype != torch.float32
                or term.shape != (numel,)
                or not (term.is_cpu and term.is_contiguous())
            ):
                host = None
        if host is None or not level > 0.0:
            raise self._refusal(gradient, residual, out)
        buffers, most, sums = self._buffers, self._most, torch.zeros(24, dtype=torch.float64, device="cpu")
        e, p = 0 if residual is None else residual.data_ptr(), out.data_ptr()
        found = host.sift(
            *(gradient.data_ptr(), e, share, p, level, sums.data_ptr()),
            *(buffers.places.data_ptr(), buffers.values.data_ptr(), e == p),
            *(most, numel, 0 if residual is None else numel),
        )
        sq, gradient_sq, dot = sums.view(3, 8).sum(1).tolist()
        finite, wanted = math.isfinite(sq), self.wanted
        fits = finite and self.k <= found <= most
        if 0 < found < numel and wanted < numel:
            # For exponential magnitudes, a threshold that m of n pass is ln(n/m) times their mean, so the ratio of two
            # such logarithms is that of the thresholds.
            off = math.log(numel / wanted) / math.log(numel / found)
            self.level = level * min(2.0, max(0.5, off)) ** STEADY
        else:
            self.level = math.nan
        return Sifted(
            sq if finite else math.inf,
            sq if residual is None else gradient_sq,
            dot,
            buffers.places[:found] if fits else None,
            buffers.values[:found] if fits else None,
        )

    def _refusal(self, gradient: Tensor, residual: Tensor | None, out: Tensor) -> ValueError:
        check_terms(gradient, residual, out)
        if out.numel() != self.numel:
            return ValueError(f"out has {out.numel()} elements, this sifter is for {self.numel}")
        return ValueError("there is no guess yet, or no compiled kernel for such a gradient: use tally")

    def update_threshold(self, tally: Tally) -> None:
        """Set the threshold of the next step from a histogram of this step's p."""
        at_least = tally.counts.flip(0).cumsum(0).flip(0)
        edge = (int((at_least >= self.wanted).sum()) - 1) << COARSE_SHIFT
        level = float(torch.tensor(max(edge, 0), dtype=torch.int32, device="cpu").view(torch.float32))
        self.level = level if 0.0 < level < math.inf else math.nan
