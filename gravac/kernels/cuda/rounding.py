"""Blocks rounded at random to a few levels, and back."""

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.bits import field
from gravac.kernels.cuda.blocks import begin_of, read, room, write
from gravac.kernels.cuda.build import jit, launch
from gravac.kernels.cuda.draws import noise

BLOCK = 1024
"""Elements per program; even."""
TILE = 4096
"""Elements per program that searches the largest of each block."""
SIZES = (32, 256)
"""Blocks of up to this many elements are processed together. Each size compiles a kernel, so they are few."""


@jit()
def _largest(
    x: tl.tensor,
    scales: tl.tensor,
    n: tl.int64,
    block: tl.int64,
    rows: tl.int64,
    pieces: tl.int32,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    """Finds the largest of ``ROWS`` blocks, or of one of the ``pieces`` of one. ``scales`` begins with zeros."""
    row = (tl.program_id(0) // pieces).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = (tl.program_id(0) % pieces).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    place = row[:, None] * block + at[None, :]
    inside = (at[None, :] < block) & (place < n)
    magnitude = tl.load(x + place, mask=inside, other=0) & 0x7FFFFFFF
    tl.atomic_max(scales + row, tl.max(magnitude, 1), mask=row < rows, sem="relaxed")


@jit()
def _row(begin: tl.tensor, at: tl.tensor, block: tl.tensor) -> tl.tensor:
    """Returns the block of each element ``begin + at`` with one 64-bit division for all of them."""
    first = begin // block
    return first + ((begin - first * block).to(tl.uint32) + at.to(tl.uint32)) // block.to(tl.uint32)


@jit("x", "codes")
def _round(
    x: tl.tensor,
    scales: tl.tensor,
    codes: tl.tensor,
    n: tl.int64,
    block: tl.int64,
    steps: tl.int32,
    stream: tl.int64,
    SIZE: tl.constexpr,
) -> None:
    begin, at = begin_of(SIZE), tl.arange(0, SIZE)
    left = room(n, begin, SIZE)
    scale = tl.load(scales + _row(begin, at, block), mask=at < left, other=0.0)
    usable = (scale > 0.0) & (scale < float("inf"))
    value = tl.where(usable, read(x + begin, at, left, SIZE), 0.0)
    a = tl.div_rn(value, tl.where(usable, scale, 1.0)) * steps.to(tl.float32)
    low = tl.floor(a)
    level = low.to(tl.int32) + (noise(stream, begin, SIZE) < a - low).to(tl.int32)
    write(codes + begin, at, (level + steps).to(tl.uint8), left, SIZE)


@jit("out")
def _restore(
    scales: tl.tensor,
    packed: tl.tensor,
    out: tl.tensor,
    n: tl.int64,
    block: tl.int64,
    size: tl.int64,
    bits: tl.int32,
    SIZE: tl.constexpr,
) -> None:
    begin, at = begin_of(SIZE), tl.arange(0, SIZE)
    left = room(n, begin, SIZE)
    steps = (1 << (bits - 1)) - 1
    level = field(packed, begin + at, at < left, size, bits).to(tl.int32) - steps
    share = tl.div_rn(level.to(tl.float32), tl.zeros([SIZE], tl.float32) + steps.to(tl.float32))
    scale = tl.load(scales + _row(begin, at, block), mask=at < left, other=0.0)
    write(out + begin, at, share * scale, left, SIZE)


def quantize(x: Tensor, block: int, steps: int, stream: int) -> tuple[Tensor, Tensor]:
    """Returns the largest magnitude of each block of ``x`` (float32, shape ``(n,)``), and each element's code as
    uint8.
    """
    n = x.numel()
    rows = -(-n // block)
    scales = torch.zeros(rows, dtype=torch.float32, device=x.device)
    codes = torch.empty(n, dtype=torch.uint8, device=x.device)
    size = next((size for size in SIZES if block <= size < TILE), TILE)
    together, pieces = TILE // size, -(-block // size)
    launch(
        _largest,
        -(-rows // together) * pieces,
        *(x.view(torch.int32), scales.view(torch.int32), n, block, rows, pieces),
        ROWS=together,
        SIZE=size,
    )
    launch(_round, -(-n // BLOCK), x, scales, codes, n, block, steps, stream, SIZE=BLOCK)
    return scales, codes


def dequantize(scales: Tensor, packed: Tensor, numel: int, block: int, bits: int) -> Tensor:
    """Returns ``(code - steps) / steps · scale``, float32 of shape ``(numel,)``."""
    out = torch.empty(numel, dtype=torch.float32, device=scales.device)
    launch(_restore, -(-numel // BLOCK), scales, packed, out, numel, block, packed.numel(), bits, SIZE=BLOCK)
    return out
