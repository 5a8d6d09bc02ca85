"""Payloads added up where they belong."""

import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.blocks import begin_of, raw, read, room, widened
from gravac.kernels.cuda.build import jit, launch

BLOCK = 1024


@jit()
def _scatter_add(
    out: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    scale: tl.float32,
    n: tl.int64,
    count: tl.int64,
    SIZE: tl.constexpr,
) -> None:
    begin, at = begin_of(SIZE), tl.arange(0, SIZE)
    left = room(count, begin, SIZE)
    place = read(indices + begin, at, left, SIZE)
    value = widened(read(values + begin, at, left, SIZE)) * scale
    fits, inside = (place >= 0) & (place < n), at < left
    tl.atomic_add(out + place, value, mask=inside & fits, sem="relaxed")
    strays = tl.sum((inside & ~fits).to(tl.int32))
    tl.atomic_add(out, float("nan"), mask=strays > 0, sem="relaxed")


def scatter_add(out: Tensor, indices: Tensor, values: Tensor, scale: float) -> None:
    """``out[indices] += scale · values`` for a float32 ``out``; a place outside makes ``out[0]`` NaN."""
    count = indices.numel()
    launch(_scatter_add, -(-count // BLOCK), out, indices, raw(values), scale, out.numel(), count, SIZE=BLOCK)
