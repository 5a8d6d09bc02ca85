"""Gradients in float16: what does not fit the format stays in the error memory.

float16 ends at 65,504. Gradient + residual exceeds that long before the gradients of a plain run do, and so can what a
codec decodes to (a bfloat16 payload reaches 3e38). float32 and bfloat16 have room for all that a memory may hold.
"""

import math
from functools import cache

import torch
from torch import Tensor

from gravac.collectives import Transfer
from gravac.compressors import Dense
from gravac.kernels import energy
from gravac.memories import LARGEST, BucketMemory

_DENSE = Dense()


@cache
def largest_summand(dtype: torch.dtype, ranks: int) -> float:
    """Return the largest magnitude that each of ``ranks`` ranks may add to a mean that is summed in ``dtype``.

    It is infinite if ``has_room``.
    """
    info = torch.finfo(dtype)
    # Each addition rounds by a factor of at most 1 + ε/2, and the last sum, too, must stay below the largest number.
    return math.inf if has_room(dtype) else float(info.max / (1.0 + info.eps) ** ranks)


def has_room(dtype: torch.dtype) -> bool:
    """Return whether ``dtype`` has room for all that a memory may hold. float16 has not."""
    return torch.finfo(dtype).max > LARGEST


def clamp_if_larger(p: Tensor, sq: float, limit: float) -> Tensor | None:
    """Return a copy of ``p`` clamped to ±``limit``; None if ``p`` is within it. ``sq`` is the squared norm of ``p``."""
    # No element is larger than the norm. This mostly saves the pass that looks for the largest.
    if sq <= limit * limit or float(torch.linalg.vector_norm(p, math.inf)) <= limit:
        return None
    return p.clamp(-limit, limit)


def update_after_dense(
    memory: BucketMemory, p: Tensor, clamped: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """Update the memory after a dense step, which sent ``p``, or ``clamped`` if that is not None.

    Returns:
        The residual; None if it is zero.
    """
    residual = memory.update(_DENSE, None)
    if clamped is None:
        return residual
    rest = p - clamped.to(dtype)  # as sent: rounded to the format
    memory.hold_back(rest)
    return rest if residual is None else residual + rest


def send_whole(memory: BucketMemory, gradient: Tensor, ranks: int, unused: Tensor | None = None) -> None:
    """Add the whole residual to a gradient that ``ranks`` ranks are about to average densely.

    Args:
        memory: The bucket's error memory.
        gradient: Shape ``(n,)``; overwritten.
        ranks: How many ranks average.
        unused: Elements whose residual stays in the memory, bool of shape ``(n,)``; see ``unused_elements``.
    """
    p = memory.compensate(gradient, dense=True)
    if unused is not None:
        memory.withhold(p, unused)
    limit, sq = largest_summand(gradient.dtype, ranks), float(energy(p))
    clamped = clamp_if_larger(p, sq, limit) if math.isfinite(sq) else None
    update_after_dense(memory, p, clamped, gradient.dtype)
    gradient.copy_(p if clamped is None else clamped)


class Float16Means:
    """Writes means into float16 buffers by way of one float32 work space."""

    def __init__(self) -> None:
        self._space = torch.empty(0, dtype=torch.float32, device="cpu")

    def write(self, transfer: Transfer, buffer: Tensor) -> tuple[bool, Tensor | None]:
        """Write the mean into ``buffer``.

        Returns:
            Whether all of the mean is finite; and the part that did not fit, None if all did. That part has the same
            bits on all ranks, as the mean has.
        """
        mean = self._decoded(transfer, buffer)
        largest, limit = float(torch.linalg.vector_norm(mean, math.inf)), torch.finfo(buffer.dtype).max
        if largest <= limit or not math.isfinite(largest):
            buffer.copy_(mean)
            return math.isfinite(largest), None
        buffer.copy_(mean.clamp(-limit, limit))
        return True, mean.sub_(buffer)

    def write_unread(self, transfer: Transfer, buffer: Tensor, in_place: bool) -> None:
        """Write the mean into a buffer of any format on a device. What float16 cannot hold becomes infinite."""
        if buffer.is_sparse or has_room(buffer.dtype):
            transfer.mean_into(buffer)
        elif not in_place:
            buffer.copy_(self._decoded(transfer, buffer))

    def fits(self, transfer: Transfer, buffer: Tensor, in_place: bool) -> Tensor | None:
        """Return whether the mean fits a buffer on a device, bool of shape ``()``; None if it always does."""
        if buffer.is_sparse or not buffer.numel() or has_room(buffer.dtype):
            return None
        mean = buffer if in_place else self._decoded(transfer, buffer)
        largest: Tensor = torch.linalg.vector_norm(mean, math.inf)
        return largest <= torch.finfo(buffer.dtype).max

    def is_finite(self, transfer: Transfer, buffer: Tensor) -> bool:
        """Return whether the mean is finite, before anything writes it. Only float16 is checked."""
        return has_room(buffer.dtype) or is_finite(self._decoded(transfer, buffer))

    def _decoded(self, transfer: Transfer, buffer: Tensor) -> Tensor:
        if self._space.numel() < buffer.numel() or self._space.device != buffer.device:
            self._space = torch.empty(buffer.numel(), device=buffer.device, dtype=torch.float32)
        mean = self._space[: buffer.numel()]
        transfer.mean_into(mean)
        return mean


def is_finite(buffer: Tensor) -> bool:
    """Return whether every element is finite."""
    return not buffer.numel() or math.isfinite(float(torch.linalg.vector_norm(buffer, math.inf)))
