"""Inner products in float64 that stay on the device, and sparse vectors added to dense ones."""

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.blocks import aligned, begin_of, raw, read, room, widened, write
from gravac.kernels.cuda.build import jit, launch

INNER_BLOCK, SCATTER_BLOCK = 4096, 1024
"""Elements per program."""


@jit("x", "y")
def _inner(x: tl.tensor, y: tl.tensor, sums: tl.tensor, n: tl.int64, SIZE: tl.constexpr) -> None:
    begin, at = begin_of(SIZE), tl.arange(0, SIZE)
    left = room(n, begin, SIZE)
    one = widened(read(x + begin, at, left, SIZE)).to(tl.float64)
    other = widened(read(y + begin, at, left, SIZE)).to(tl.float64)
    tl.store(sums + tl.program_id(0), tl.sum(one * other))


def inner(x: Tensor, y: Tensor) -> Tensor:
    """Returns ⟨x, y⟩ of two tensors of shape ``(n,)``, floating dtypes up to float32: float64 of shape ``()``."""
    n = x.numel()
    programs = -(-n // INNER_BLOCK)
    sums = torch.empty(programs, dtype=torch.float64, device=x.device)
    launch(_inner, programs, raw(aligned(x)), raw(aligned(y)), sums, n, warps=8, SIZE=INNER_BLOCK)
    return sums.sum()


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
    """Adds ``out[indices] += scale · values`` to a float32 ``out``; a position outside makes ``out[0]`` NaN."""
    count = indices.numel()
    launch(
        _scatter_add,
        -(-count // SCATTER_BLOCK),
        out,
        indices,
        raw(values),
        scale,
        out.numel(),
        count,
        SIZE=SCATTER_BLOCK,
    )


@jit("out", "x")
def _subtract_unless(kept: tl.tensor, out: tl.tensor, x: tl.tensor, n: tl.int64, SIZE: tl.constexpr) -> None:
    if tl.load(kept) == 0:
        begin, at = begin_of(SIZE), tl.arange(0, SIZE)
        left = room(n, begin, SIZE)
        value = widened(read(x + begin, at, left, SIZE))
        value = tl.where(tl.abs(value) < float("inf"), value, 0.0)
        write(out + begin, at, read(out + begin, at, left, SIZE) - value, left, SIZE)


def subtract_unless(kept: Tensor, out: Tensor, x: Tensor) -> None:
    """Do what ``gravac.kernels.subtract_unless`` does."""
    n = out.numel()
    launch(
        _subtract_unless,
        -(-n // INNER_BLOCK),
        kept.view(torch.uint8),
        out,
        raw(aligned(x)),
        n,
        SIZE=INNER_BLOCK,
    )
