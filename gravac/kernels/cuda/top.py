"""The k largest elements, exactly, in the order of their positions.

Two passes over the tensor: ``tally`` finds the bin of the k-th largest, and ``_mark`` sets bits for the elements in
that bin and beyond. The rest works on bits, 32 elements per word, of which few are set: those in the bin are counted by
magnitude, all 2^19 of them, which gives the k-th largest to the bit, and every element its position in the result.
"""

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.blocks import begin_of, number, ones, read, room, some
from gravac.kernels.cuda.build import jit, launch
from gravac.kernels.reference import BINS

ROWS = 128
"""Words of 32 elements that a program marks."""
WORDS = 1024
"""Words whose bits a program goes over."""
_COARSE, _FINE = tl.constexpr(512), tl.constexpr(1024)
"""Magnitudes within a bin are found in two steps, 9 bits and 10."""
_BINS = tl.constexpr(BINS)
_NAN = tl.constexpr(0x7FC00000)


@jit()
def _aim(counts: tl.tensor, aim: tl.tensor, k: tl.int64) -> None:
    """Sets ``aim``: the lowest magnitude of the bin of the k-th largest, and its rank in that bin."""
    bins = tl.arange(0, _BINS)
    count = tl.load(counts + bins)
    at_least = tl.cumsum(count, 0, reverse=True)
    bin_ = tl.maximum(tl.sum((at_least >= k).to(tl.int32)) - 1, 0)
    above = tl.sum(tl.where(bins > bin_, count, 0))
    tl.store(aim, bin_ << 19)
    tl.store(aim + 1, (k - above).to(tl.int32))


@jit("x")
def _mark(
    x: tl.tensor,
    above: tl.tensor,
    near: tl.tensor,
    aim: tl.tensor,
    n: tl.int64,
    size: tl.int64,
    ROWS: tl.constexpr,
) -> None:
    """Sets a bit in ``near`` for each element whose magnitude is in the bin, and in ``above`` for each beyond."""
    begin, row, lane = begin_of(ROWS * 32), tl.arange(0, ROWS), tl.arange(0, 32)
    at = row[:, None] * 32 + lane[None, :]
    left = room(n, begin, ROWS * 32)
    magnitude = (read(x + begin, at, left, ROWS * 32) & 0x7FFFFFFF).to(tl.uint32)
    inside, bit = at < left, tl.full([1, 1], 1, tl.int32) << lane[None, :]
    edge = tl.load(aim).to(tl.uint32)
    beyond = magnitude >= edge + 0x80000  # at most 2^31
    within = inside & (magnitude >= edge) & (magnitude < edge + 0x80000)
    word = begin // 32 + row
    tl.store(above + word, tl.sum(tl.where(inside & beyond, bit, 0), 1), mask=word < size)
    tl.store(near + word, tl.sum(tl.where(within, bit, 0), 1), mask=word < size)


@jit()
def _spread(
    x: tl.tensor, near: tl.tensor, coarse: tl.tensor, fine: tl.tensor, size: tl.int64, SIZE: tl.constexpr
) -> None:
    """Counts the magnitudes in the bin, each of them in ``fine`` and 1,024 together in ``coarse``."""
    place = begin_of(SIZE) + tl.arange(0, SIZE)
    left = tl.load(near + place, mask=place < size, other=0)
    one = tl.full([SIZE], 1, tl.int32)
    while some(left):
        bit = left & -left
        found = left != 0
        rest = tl.load(x + place * 32 + number(bit), mask=found, other=0) & 0x7FFFF
        # The least are counted together: they may be zeros, most of a sparse gradient, and would wait for each other.
        least = tl.min(tl.where(found, rest, 0x7FFFF))
        alike = found & (rest == least)
        count = tl.sum(alike.to(tl.int32))
        tl.atomic_add(coarse + (least >> 10), count, sem="relaxed")
        tl.atomic_add(fine + least, count, sem="relaxed")
        tl.atomic_add(coarse + (rest >> 10), one, mask=found & (rest != least), sem="relaxed")
        tl.atomic_add(fine + rest, one, mask=found & (rest != least), sem="relaxed")
        left ^= bit


@jit()
def _find_threshold(aim: tl.tensor, coarse: tl.tensor, fine: tl.tensor) -> None:
    """Sets ``aim[2]``: the magnitude of the k-th largest."""
    edge, rank = tl.load(aim), tl.load(aim + 1)
    piece = tl.arange(0, _COARSE)
    count = tl.load(coarse + piece)
    first = tl.maximum(tl.sum((tl.cumsum(count, 0, reverse=True) >= rank).to(tl.int32)) - 1, 0)
    rank -= tl.sum(tl.where(piece > first, count, 0))
    count = tl.load(fine + first * _FINE + tl.arange(0, _FINE))
    second = tl.maximum(tl.sum((tl.cumsum(count, 0, reverse=True) >= rank).to(tl.int32)) - 1, 0)
    tl.store(aim + 2, edge | (first << 10) | second)


@jit()
def _part(
    x: tl.tensor,
    above: tl.tensor,
    near: tl.tensor,
    counts: tl.tensor,
    aim: tl.tensor,
    size: tl.int64,
    SIZE: tl.constexpr,
) -> None:
    """Moves the bits of elements larger than the k-th from ``near`` to ``above``, and leaves those equal to it."""
    place = begin_of(SIZE) + tl.arange(0, SIZE)
    threshold = tl.load(aim + 2)
    larger = tl.load(above + place, mask=place < size, other=0)
    left = tl.load(near + place, mask=place < size, other=0)
    equal = tl.zeros([SIZE], tl.int32)
    while some(left):
        bit = left & -left
        magnitude = tl.load(x + place * 32 + number(bit), mask=left != 0, other=0) & 0x7FFFFFFF
        larger |= tl.where(magnitude > threshold, bit, 0)
        equal |= tl.where(magnitude == threshold, bit, 0)
        left ^= bit
    tl.store(above + place, larger, mask=place < size)
    tl.store(near + place, equal, mask=place < size)
    tl.store(counts + tl.program_id(0), tl.sum(ones(larger)))
    tl.store(counts + tl.num_programs(0) + tl.program_id(0), tl.sum(ones(equal)))


@jit()
def _take(
    x: tl.tensor,
    above: tl.tensor,
    ties: tl.tensor,
    upto: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    k: tl.int32,
    size: tl.int64,
    CLEAR: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    """Copies the selected elements. ``upto``: larger and equal ones up to the end of each program's words."""
    programs, number_ = tl.num_programs(0), tl.program_id(0)
    larger = tl.load(upto + programs - 1)
    wanted, equals = k - larger, tl.load(upto + 2 * programs - 1)
    if (wanted < 1) | (wanted > equals):  # counts of another tensor: nothing is taken, and all can see it
        for begin in range(number_ * SIZE, k, programs * SIZE):
            slot = begin + tl.arange(0, SIZE)
            tl.store(indices + slot, slot, mask=slot < k)
            tl.store(values + slot, tl.full([SIZE], _NAN, tl.int32), mask=slot < k)
    else:
        place = begin_of(SIZE) + tl.arange(0, SIZE)
        greater = tl.load(above + place, mask=place < size, other=0)
        equal = tl.load(ties + place, mask=place < size, other=0)
        more, same = ones(greater), ones(equal)
        # Of equal ones the first are taken: how many came before each word, and so where its first element goes.
        before = tl.load(upto + number_) - tl.sum(more) + tl.cumsum(more, 0) - more
        rank = tl.load(upto + programs + number_) - tl.sum(same) + tl.cumsum(same, 0) - same
        slot = before + tl.minimum(rank, wanted)
        left = greater | equal
        while some(left):
            bit = left & -left
            tie = (equal & bit) != 0
            take = (left != 0) & ((equal & bit == 0) | (rank < wanted))
            source = place * 32 + number(bit)
            tl.store(values + slot, tl.load(x + source, mask=take, other=0), mask=take)
            tl.store(indices + slot, source.to(tl.int32), mask=take)
            if CLEAR:
                tl.debug_barrier()  # all threads have read
                tl.store(x + source, tl.zeros([SIZE], tl.int32), mask=take)
            rank += tie.to(tl.int32)
            slot += take.to(tl.int32)
            left ^= bit


def top(x: Tensor, k: int, counts: Tensor, clear: bool, indices: Tensor, values: Tensor) -> None:
    """Selects the ``k`` largest magnitudes of ``x``.

    With counts of another tensor nothing is cleared, and the values are NaN.

    Args:
        x: float32, shape ``(n,)``.
        k: 1 to n.
        counts: Elements of ``x`` by bin, int64 of shape ``(4096,)``.
        clear: Leave 0 where an element was taken.
        indices: Buffer for the positions, int32 of shape ``(k,)``.
        values: Buffer for the values, float32 of shape ``(k,)``.
    """
    n, device = x.numel(), x.device
    size = -(-n // 32)
    programs = -(-size // WORDS)
    coarse, fine = _COARSE.value, _COARSE.value * _FINE.value
    table = torch.zeros(coarse + fine, dtype=torch.int32, device=device)
    above = torch.empty(size, dtype=torch.int32, device=device)
    near = torch.empty(size, dtype=torch.int32, device=device)
    found = torch.empty(2, programs, dtype=torch.int32, device=device)
    aim = torch.empty(3, dtype=torch.int32, device=device)
    bits = x.view(torch.int32)
    launch(_aim, 1, counts, aim, k, warps=8)
    launch(_mark, -(-size // ROWS), bits, above, near, aim, n, size, warps=8, ROWS=ROWS)
    launch(_spread, programs, bits, near, table[:coarse], table[coarse:], size, SIZE=WORDS)
    launch(_find_threshold, 1, aim, table[:coarse], table[coarse:])
    launch(_part, programs, bits, above, near, found, aim, size, SIZE=WORDS)
    upto = found.cumsum(1, dtype=torch.int32)
    places = (indices, values.view(torch.int32))
    launch(_take, programs, bits, above, near, upto, *places, k, size, CLEAR=clear, SIZE=WORDS)
