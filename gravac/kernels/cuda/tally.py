"""One pass over a gradient: add the residual, count bins, sum their energies.

A program adds its elements to one of many tables, one 64-bit sum per element: the upper 20 bits count, the lower 44 add
up the squared significand, rounded to 24 bits. So energies are sums of integers, equal in any order, and a bin's is off
by at most 2^-23 of itself (2^-15 below the normal numbers). Bin 0, magnitudes below 2^-130 and the zeros of sparse
gradients, is counted per block, and its energy is taken as 0.
"""

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.blocks import aligned, begin_of, raw, read, room, widened, write
from gravac.kernels.cuda.build import jit, launch
from gravac.kernels.reference import BINS

BLOCK = 4096
"""Elements per program."""
BLOCKS_A_TABLE = 128
"""Programs that share a table: fewer need more memory, more wait for each other, and 256 would count to 2^20."""
FOLDED, _AT_ONCE = 64, 16
"""Bins of a program that adds the tables up, and tables that it reads at a time."""

_BINS = tl.constexpr(BINS)
_SUM = tl.constexpr(44)
"""Bits of a table's word below the count."""
_ONE, _SUMS = tl.constexpr(1 << 44), tl.constexpr((1 << 44) - 1)


@jit("g", "e", "p")
def _count(
    g: tl.tensor,
    e: tl.tensor,
    share: tl.float32,
    p: tl.tensor,
    tables: tl.tensor,
    products: tl.tensor,
    n: tl.int64,
    copies: tl.int32,
    programs: tl.int32,
    RESIDUAL: tl.constexpr,
    OVER: tl.constexpr,
    WRITTEN: tl.constexpr,
    SUMS: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    begin, at = begin_of(SIZE), tl.arange(0, SIZE)
    left = room(n, begin, SIZE)
    value = widened(read(g + begin, at, left, SIZE))
    if SUMS:
        wide = value.to(tl.float64)
        tl.store(products + tl.program_id(0), tl.sum(wide * wide))
    if RESIDUAL:
        residual = read(e + begin, at, left, SIZE)
        if SUMS:
            tl.store(products + programs + tl.program_id(0), tl.sum(residual.to(tl.float64) * wide))
        fresh = value
        if OVER:
            fresh = tl.where(tl.abs(value) < float("inf"), value, 0.0)
        value = fresh + residual * share
    if WRITTEN:
        write(p + begin, at, value, left, SIZE)
    magnitude = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    bins, inside = magnitude >> 19, at < left
    significand = (magnitude & 0x7FFFFF) | ((magnitude >= 0x800000).to(tl.int32) << 23)
    square = significand.to(tl.int64) * significand
    word = ((square + (1 << 23)) >> 24) + _ONE
    table = tables + (tl.program_id(0) % copies) * _BINS
    tl.atomic_add(table + bins, word, mask=inside & (bins > 0), sem="relaxed")
    tiny = tl.sum((inside & (bins == 0)).to(tl.int64))
    tl.atomic_add(table, tiny << _SUM, mask=tiny > 0, sem="relaxed")


@jit()
def _fold(
    tables: tl.tensor,
    counts: tl.tensor,
    energies: tl.tensor,
    copies: tl.int32,
    SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    bins = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    count, total = tl.zeros([SIZE], tl.int64), tl.zeros([SIZE], tl.int64)
    for begin in range(0, copies, AT_ONCE):
        copy = begin + tl.arange(0, AT_ONCE)
        place = copy[:, None] * _BINS + bins[None, :]
        words = tl.load(tables + place, mask=copy[:, None] < copies, other=0)
        count += tl.sum((words >> _SUM) & 0xFFFFF, 0)
        total += tl.sum(words & _SUMS, 0)
    tl.store(counts + bins, count)
    # Times 2^24 for what was rounded off, and 4 to the power of the bin's exponent: a float64 of no significand.
    exponent = 2 * (tl.maximum(bins >> 4, 1) - 150) + 24
    scale = ((exponent + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)
    tl.store(energies + bins, tl.where(bins < 4080, total.to(tl.float64) * scale, 0.0))


def tally(g: Tensor, e: Tensor | None, share: float, p: Tensor, sums: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Does what ``reference.tally`` does. Returns counts, energies (see above), and the products g·g and e·g, on
    the device.
    """
    n, device = p.numel(), p.device
    programs = -(-n // BLOCK)
    copies = max(1, -(-programs // BLOCKS_A_TABLE))
    tables = torch.zeros(copies, BINS, dtype=torch.int64, device=device)
    counts = torch.empty(BINS, dtype=torch.int64, device=device)
    energies = torch.empty(BINS, dtype=torch.float64, device=device)
    products = torch.zeros(2, programs if sums else 0, dtype=torch.float64, device=device)
    residual = p if e is None else e  # not read
    written = e is not None or g.data_ptr() != p.data_ptr()
    launch(
        _count,
        programs,
        *(raw(aligned(g)), residual, share, p, tables, products, n, copies, programs),
        warps=8,
        RESIDUAL=e is not None,
        OVER=e is p,
        WRITTEN=written,
        SUMS=sums,
        SIZE=BLOCK,
    )
    launch(_fold, BINS // FOLDED, tables, counts, energies, copies, SIZE=FOLDED, AT_ONCE=_AT_ONCE)
    return counts, energies, products.sum(1)
