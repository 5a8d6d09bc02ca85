"""Gradient + residual of one bucket: added up, measured and counted in as few passes as possible.

In a surveyed step the histograms give the whole curve of gain against CF: what Top-k would keep at each CF. A few such
steps in a window are enough, since the curve moves slowly, and counting costs a pass over the gradient.
"""

import logging
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gravac.kernels import Scalar, SelectionHint, Sifter, Tally, energy, on_device, tally
from gravac.memories import Bucket, BucketMemory
from gravac.signals.spectrum import Curve, Spectrum

log = logging.getLogger("gravac.agent")

SURVEYED_STEPS = 3
"""Steps of a window that are surveyed."""


@dataclass(slots=True)
class CompensatedGradient:
    """p = gradient + the share of the residual that is sent with it. Norms are infinite or NaN if an element is."""

    p: Tensor
    """Shape ``(n,)``. Without a memory it may be the gradient itself. If it is the memory's own buffer, elements of the
    gradient that are not finite count as 0 in it, and ``sq`` is infinite."""
    gradient_sq: Scalar
    sq: Scalar
    """‖p‖²."""
    histogram: Tally | None
    """Histogram of p's magnitudes; None if they were not counted."""
    magnitudes: SelectionHint | None
    """What a codec can use instead of counting p: the histogram, or candidates for its largest elements."""
    full_residual: bool
    """Whether the whole residual was added, so that the next residual is p - sent."""
    unused: Tensor | None = None
    """Which elements p leaves out; see ``unused_elements``."""
    withheld_sq: Scalar = 0.0
    """Energy of the residual that stays in the memory for them."""
    dot: Scalar | None = None
    """⟨p, g⟩; None if it was not computed in passing."""


def unused_elements(bucket: Bucket, gradient: Tensor) -> Tensor | None:
    """Return which elements belong to parameters whose gradient is zero on this rank, bool of shape ``(n,)``.

    DDP drops the mean of a parameter that no rank used, so a residual that is sent for it is lost. A rank does not know
    in time what the others used. So it sends no residual for a parameter without a gradient of its own: a residual can
    wait longer.

    Returns:
        The elements; None if there are none, which is not known on a device.
    """
    pieces = gradient.split(list(bucket.numels))
    if on_device(gradient):
        return torch.cat([(~piece.any()).expand(piece.numel()) for piece in pieces])
    zero = [not (piece[:1].any() or piece.any()) for piece in pieces]  # one element mostly decides
    if not any(zero):
        return None
    return torch.cat(
        [
            torch.full((piece.numel(),), one, dtype=torch.bool, device="cpu")
            for piece, one in zip(pieces, zero, strict=True)
        ]
    )


def compensate(
    memory: BucketMemory,
    bucket: Bucket,
    gradient: Tensor,
    *,
    dense: bool,
    count: bool,
    sifter: Sifter | None = None,
    unused: Tensor | None = None,
) -> CompensatedGradient:
    """Add the residual to a gradient, and measure the sum in the same pass where a kernel can.

    Args:
        memory: The bucket's error memory. Its draft of this step begins here.
        bucket: Which parameters the gradient is made of.
        gradient: Shape ``(n,)``; not changed.
        dense: Whether to add all of the residual, for a dense step.
        count: Whether to make a histogram of p.
        sifter: Finds candidates for the largest elements, which a codec takes instead of a histogram.
        unused: Elements whose residual stays in the memory, bool of shape ``(n,)``; None if there are none.
    """
    terms = memory.pending_sum(gradient, dense=dense) if unused is None else None
    if terms is None:
        p = memory.compensate(gradient, dense=dense)
        withheld_sq: Scalar = 0.0
        if unused is not None:
            withheld_sq = energy(torch.where(unused, p, 0.0))
            memory.withhold(p, unused)
        histogram = tally(p) if count or sifter is not None else None
        sq = energy(p) if histogram is None else histogram.energy
        return CompensatedGradient(p, energy(gradient), sq, histogram, histogram, False, unused, withheld_sq)
    residual, share, out = terms
    if sifter is not None and not count and sifter.takes(gradient):
        sifted = sifter.sift(gradient, residual, out, share)
        memory.sum_written()
        dot: Scalar = sifted.gradient_sq + share * sifted.residual_dot_gradient  # ⟨g + share · e, g⟩
        magnitudes: SelectionHint = sifted
        if sifted.places is None and math.isfinite(sifted.energy):  # the threshold was off: count after all
            magnitudes = tally(out)
            sifter.update_threshold(magnitudes)
        return CompensatedGradient(
            out, sifted.gradient_sq, sifted.energy, None, magnitudes, share == 1.0, dot=dot
        )
    if count or sifter is not None:
        # ‖g‖² and ⟨e, g⟩ too: where ``out`` is the residual, this pass is the last that can read it.
        histogram = tally(gradient, residual, share=share, out=out, sums=True)
        memory.sum_written()
        if sifter is not None:
            sifter.update_threshold(histogram)
        gradient_sq, residual_dot = histogram.gradient_sq, histogram.residual_dot_gradient
        assert gradient_sq is not None
        assert residual_dot is not None
        dot = gradient_sq + share * residual_dot
        sq = _where_finite(gradient_sq, histogram.energy)
        return CompensatedGradient(out, gradient_sq, sq, histogram, histogram, share == 1.0, dot=dot)
    gradient_sq = energy(gradient)
    terms.write(gradient, only_finite=isinstance(gradient_sq, Tensor) or not math.isfinite(gradient_sq))
    memory.sum_written()
    sq = gradient_sq if residual is None else _where_finite(gradient_sq, energy(out))
    return CompensatedGradient(out, gradient_sq, sq, None, None, share == 1.0)


def _where_finite(gradient_sq: Scalar, sq: Scalar) -> Scalar:
    """Return ``sq``, or infinity if ``gradient_sq`` is not finite: a sum in place counts such elements as 0."""
    if isinstance(gradient_sq, Tensor):
        return torch.where(gradient_sq.isfinite(), sq, gradient_sq)
    return sq if math.isfinite(gradient_sq) else math.inf


@dataclass(slots=True)
class Survey:
    """The gain curve of one step on one rank, summed over its buckets."""

    wanted: bool = False
    curve: Curve | None = None
    unread: list[Tally] = field(default_factory=list)
    """Histograms on a device, for ``read`` once the host has copies of them."""

    def add(self, histogram: Tally | None) -> None:
        """Add a bucket's histogram, which must be finite. Never raises: the training can do without a curve."""
        if not self.wanted or histogram is None:
            return
        if on_device(histogram.counts):
            self.unread.append(histogram)
        else:
            self.read(histogram)

    def read(self, histogram: Tally) -> None:
        """Add a histogram that is in the host's memory, as ``add`` does."""
        try:
            curve = Spectrum.of(histogram).curve()
            self.curve = curve if self.curve is None else self.curve + curve
        except Exception:
            log.exception("the gain curve of this step is left out")
            self.wanted, self.curve = False, None


NO_SURVEY = Survey()


def is_surveyed(step_of_window: int, window_steps: int) -> bool:
    """Return whether to survey a step: ``SURVEYED_STEPS`` evenly spread ones of each window, and always its last.

    Args:
        step_of_window: 0 to ``window_steps - 1``.
        window_steps: Steps of a window.
    """
    every = max(1, window_steps // SURVEYED_STEPS)
    first = window_steps - every * SURVEYED_STEPS
    return (window_steps - 1 - step_of_window) % every == 0 and step_of_window >= first


def norm_sq(gradient: Tensor) -> Scalar:
    """Return the squared L2 norm of a flat or a sparse gradient."""
    return energy(gradient.coalesce().values().reshape(-1) if gradient.is_sparse else gradient)
