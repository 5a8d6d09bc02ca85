"""Bit packing: codes of a few bits, lowest bit first, and bits that stand for positions.

Widths are arguments, not constants: a new CF must not wait for a compiler.
"""

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.blocks import begin_of, number, ones, read, room, some
from gravac.kernels.cuda.build import jit, launch

BLOCK = 1024
"""Bytes, codes or positions per program."""
WORDS = 512
"""Words of 32 bits per program."""


@jit()
def _pack(
    codes: tl.tensor, out: tl.tensor, n: tl.int64, size: tl.int64, bits: tl.int32, SIZE: tl.constexpr
) -> None:
    """Makes each byte from the codes that reach into it: those that begin up to 7 bits before its end."""
    begin = begin_of(SIZE)
    at = tl.arange(0, SIZE)
    start = begin * 8 // bits  # the first code of the program's first byte
    bit = (begin * 8 - start * bits).to(tl.int32) + at * 8
    first = bit // bits
    byte = tl.zeros([SIZE], tl.int64)
    for step in range(7 // bits + 2):
        code = first + step
        shift = code * bits - bit
        value = tl.load(codes + start + code, mask=(at < size - begin) & (start + code < n), other=0)
        value = value.to(tl.int64) & ((tl.full([1], 1, tl.int64) << bits) - 1)
        byte |= (value << tl.maximum(shift, 0)) >> tl.maximum(-shift, 0)
    tl.store(out + begin + at, byte.to(tl.uint8), mask=at < size - begin)


@jit()
def field(packed: tl.tensor, at: tl.tensor, inside: tl.tensor, size: tl.tensor, bits: tl.tensor) -> tl.tensor:
    """Returns the codes number ``at`` (int64) of ``bits`` bits, int64; 0 for ``bits`` 0."""
    bit = at * bits
    first = bit >> 3
    word = tl.zeros_like(bit)
    for step in range((bits + 14) // 8):
        byte = tl.load(packed + first + step, mask=inside & (first + step < size), other=0)
        word |= byte.to(tl.int64) << (8 * step)
    return (word >> (bit & 7)) & ((tl.full([1], 1, tl.int64) << bits) - 1)


@jit()
def _unpack(
    packed: tl.tensor, out: tl.tensor, n: tl.int64, size: tl.int64, bits: tl.int32, SIZE: tl.constexpr
) -> None:
    code = begin_of(SIZE) + tl.arange(0, SIZE)
    value = field(packed, code, code < n, size, bits)
    tl.store(out + code, value.to(out.dtype.element_ty), mask=code < n)


@jit()
def _set(
    places: tl.tensor, words: tl.tensor, n: tl.int64, bits: tl.int64, low: tl.int32, SIZE: tl.constexpr
) -> None:
    """Sets bits. With ``low`` > 0, the walk of Elias and Fano: the upper part of each position, plus its number."""
    begin, at = begin_of(SIZE), tl.arange(0, SIZE)
    left = room(n, begin, SIZE)
    place = read(places + begin, at, left, SIZE).to(tl.int64) >> low
    place += tl.where(low > 0, begin + at, 0)
    bit = tl.full([SIZE], 1, tl.int32) << (place & 31).to(tl.int32)
    tl.atomic_or(words + (place >> 5), bit, mask=(at < left) & (place >= 0) & (place < bits), sem="relaxed")


@jit()
def _word(packed: tl.tensor, index: tl.tensor, size: tl.tensor) -> tl.tensor:
    """Returns 32 bits at any alignment."""
    word = tl.zeros_like(index).to(tl.int32)
    for step in tl.static_range(4):
        byte = tl.load(packed + index * 4 + step, mask=index * 4 + step < size, other=0)
        word |= byte.to(tl.int32) << (8 * step)
    return word


@jit()
def _population(packed: tl.tensor, counts: tl.tensor, size: tl.int64, SIZE: tl.constexpr) -> None:
    word = _word(packed, begin_of(SIZE) + tl.arange(0, SIZE), size)
    tl.store(counts + tl.program_id(0), tl.sum(ones(word)))


@jit()
def _find(
    packed: tl.tensor,
    lower: tl.tensor,
    upto: tl.tensor,
    places: tl.tensor,
    n: tl.int64,
    size: tl.int64,
    lower_size: tl.int64,
    low: tl.int32,
    SIZE: tl.constexpr,
) -> None:
    """The inverse of ``_set``, for the first ``n`` ones. ``upto``: ones up to the end of each program's words."""
    index = begin_of(SIZE) + tl.arange(0, SIZE)
    left = _word(packed, index, size)
    count = ones(left)
    slot = (tl.load(upto + tl.program_id(0)) - tl.sum(count) + tl.cumsum(count, 0) - count).to(tl.int64)
    while some(left):
        bit = left & -left
        inside = (left != 0) & (slot < n)
        place = index * 32 + number(bit)
        if low > 0:
            place = ((place - slot) << low) | field(lower, slot, inside, lower_size, low)
        tl.store(places + slot, place.to(tl.int32), mask=inside)
        slot += (left != 0).to(tl.int64)
        left ^= bit


def pack(codes: Tensor, bits: int, size: int) -> Tensor:
    """Packs codes below ``2**bits`` (uint8 or int32; higher bits are dropped), bits 1 to 31, into ``size`` bytes."""
    out = torch.empty(size, dtype=torch.uint8, device=codes.device)
    launch(_pack, -(-size // BLOCK), codes, out, codes.numel(), size, bits, SIZE=BLOCK)
    return out


def unpack(packed: Tensor, count: int, bits: int, dtype: torch.dtype) -> Tensor:
    """Returns the codes that ``pack`` packed, as ``dtype``, shape ``(count,)``."""
    out = torch.empty(count, dtype=dtype, device=packed.device)
    launch(_unpack, -(-count // BLOCK), packed, out, count, packed.numel(), bits, SIZE=BLOCK)
    return out


def set_ones(places: Tensor, bits: int, low: int) -> Tensor:
    """Returns ``bits`` bits as bytes, with ones at ``places``; with ``low`` > 0, at ``(places >> low) + (0, 1, 2, …)``.

    Positions outside are left out.
    """
    words = torch.zeros(-(-bits // 32), dtype=torch.int32, device=places.device)
    launch(_set, -(-places.numel() // BLOCK), places, words, places.numel(), bits, low, SIZE=BLOCK)
    return words.view(torch.uint8)[: -(-bits // 8)]


def find_ones(packed: Tensor, count: int, low: int, lower: Tensor) -> Tensor:
    """Returns the positions that ``set_ones`` set, int32 of shape ``(count,)``; missing ones are -1 at the end.

    The ``low`` lower bits of each are read from ``lower``.
    """
    size, device = packed.numel(), packed.device
    places = torch.full((count,), -1, dtype=torch.int32, device=device)
    programs = -(-size // (4 * WORDS))
    counts = torch.empty(programs, dtype=torch.int32, device=device)
    launch(_population, programs, packed, counts, size, SIZE=WORDS)
    upto = counts.cumsum(0, dtype=torch.int32)
    launch(
        _find,
        programs,
        *(packed, lower, upto, places, count, size, lower.numel(), low),
        SIZE=WORDS,
    )
    return places
