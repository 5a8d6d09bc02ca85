"""Gradients in a narrow format: what does not fit it stays in the error memory.

float16 ends at 65,504. Gradient + residual passes that long before the gradients of a plain run do, and so can what a
codec decodes to (a bfloat16 payload reaches 3e38). float32 and bfloat16 have room for all a memory may hold.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gravac.memories import LARGEST, Bucket, Memory

_NO_CODEC: Any = None  # an update without a payload never looks at the codec


def limit(dtype: torch.dtype, ranks: int) -> float:
    """Largest magnitude that each of ``ranks`` ranks may add to a mean that is summed up in ``dtype``.

    Each of the sums rounds by a factor of at most 1 + ε/2, the last must stay below the largest number. Infinite where
    the format has room for whatever a memory holds.
    """
    about = torch.finfo(dtype)
    return math.inf if about.max > LARGEST else float(about.max / (1.0 + about.eps) ** ranks)


def clamped(x: Tensor, sq: float, most: float) -> Tensor | None:
    """A copy of ``x`` within ±``most``; None when ``x`` is. ``sq``: its squared norm."""
    if sq <= most * most or float(torch.linalg.vector_norm(x, math.inf)) <= most:
        return None
    return x.clamp(-most, most)


def send_whole(
    memory: Memory, bucket: Bucket, x: Tensor, part: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """In a dense step: ``x``, or as much of it as fits ``dtype`` (``part``), is sent. Returns what is owed afterwards,
    None when that is nothing."""
    residual = memory.update(bucket, _NO_CODEC, None)
    if part is None:
        return residual
    rest = x - part.to(dtype)
    memory.hold_back(bucket, rest)
    return rest if residual is None else residual + rest


class Narrow:
    """Writes means into buffers of a narrow format, from one float32 work space for all of them."""

    def __init__(self) -> None:
        self._space = torch.empty(0)

    def land(self, mean_into: Callable[[Tensor], None], buffer: Tensor) -> tuple[bool, Tensor | None]:
        """Write the mean to ``buffer``. Returns whether all of it is finite, and what did not fit (the same bits on all
        ranks, as the mean is), None where all did."""
        if self._space.numel() < buffer.numel() or self._space.device != buffer.device:
            self._space = torch.empty(buffer.numel(), device=buffer.device)
        mean = self._space[: buffer.numel()]
        mean_into(mean)
        largest, top = float(torch.linalg.vector_norm(mean, math.inf)), torch.finfo(buffer.dtype).max
        if largest <= top:
            buffer.copy_(mean)
            return True, None
        if not math.isfinite(largest):
            buffer.copy_(mean)
            return False, None
        buffer.copy_(mean.clamp(-top, top))
        return True, mean.sub_(buffer)


def finite(buffer: Tensor) -> bool:
    """Whether a mean that was summed up in a narrow format is finite throughout."""
    return math.isfinite(float(torch.linalg.vector_norm(buffer, math.inf)))
