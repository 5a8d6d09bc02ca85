"""Random numbers that follow from a seed and a position: noise, and different positions."""

import torch
import triton.language as tl
from torch import Tensor

from gravac.kernels.cuda.blocks import begin_of, number, ones, some
from gravac.kernels.cuda.build import jit, launch

BLOCK = 1024
"""Numbers per program."""
WORDS = 64
"""Words of 32 candidates each per program."""
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST, _SECOND = tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)


@jit()
def noise(stream: tl.tensor, begin: tl.tensor, SIZE: tl.constexpr) -> tl.tensor:
    """Returns numbers ``begin`` (even) to ``begin + SIZE - 1`` of a stream, in [0, 1): two from each word."""
    place = (begin // 2 + tl.arange(0, SIZE // 2) + 1).to(tl.uint64)
    word = place * _GOLDEN + stream.to(tl.uint64)
    word = (word ^ (word >> 30)) * _FIRST
    word = (word ^ (word >> 27)) * _SECOND
    word ^= word >> 31
    both = tl.interleave((word >> 40).to(tl.int32), ((word >> 8) & 0xFFFFFF).to(tl.int32))
    return both.to(tl.float32) * (2.0**-24)


@jit()
def _noise(out: tl.tensor, stream: tl.int64, n: tl.int64, SIZE: tl.constexpr) -> None:
    begin = begin_of(SIZE)
    place = begin + tl.arange(0, SIZE)
    tl.store(out + place, noise(stream, begin, SIZE), mask=place < n)


@jit()
def _scrambled(word: tl.tensor, key: tl.tensor) -> tl.tensor:
    """A function of 32 bits (uint32) with no visible pattern (the end of MurmurHash3)."""
    word = word * 0x9E3779B1 + key
    word = (word ^ (word >> 16)) * 0x85EBCA6B
    word = (word ^ (word >> 13)) * 0xC2B2AE35
    return word ^ (word >> 16)


@jit()
def _permuted(
    place: tl.tensor, keys: tl.tensor, rounds: tl.tensor, lower: tl.tensor, upper: tl.tensor
) -> tl.tensor:
    """Returns the image of ``place`` under the Feistel network of ``draws.distinct``, uint32."""
    low_mask = (tl.full([1], 1, tl.uint32) << lower) - 1
    high_mask = (tl.full([1], 1, tl.uint32) << upper) - 1
    left, right = (place >> lower) & high_mask, place & low_mask
    for turn in range(0, rounds, 2):
        left ^= _scrambled(right, tl.load(keys + turn).to(tl.uint32)) & high_mask
        right ^= _scrambled(left, tl.load(keys + turn + 1).to(tl.uint32)) & low_mask
    return (left << lower) | right


@jit()
def _draw(
    keys: tl.tensor,
    words: tl.tensor,
    counts: tl.tensor,
    numel: tl.int64,
    rounds: tl.int32,
    lower: tl.int32,
    upper: tl.int32,
    SIZE: tl.constexpr,
) -> None:
    """Sets a bit for each candidate whose image is below ``numel``. Those beyond the network's range come last."""
    begin, row, lane = begin_of(SIZE * 32), tl.arange(0, SIZE), tl.arange(0, 32)
    place = begin + row[:, None] * 32 + lane[None, :]
    image = _permuted(place.to(tl.uint32), keys, rounds, lower, upper)
    found = image.to(tl.int64) < numel
    word = tl.sum(found.to(tl.int32) << lane[None, :], 1)
    tl.store(words + begin // 32 + row, word)
    tl.store(counts + tl.program_id(0), tl.sum(ones(word)))


@jit()
def _keep(
    keys: tl.tensor,
    words: tl.tensor,
    upto: tl.tensor,
    out: tl.tensor,
    count: tl.int32,
    rounds: tl.int32,
    lower: tl.int32,
    upper: tl.int32,
    SIZE: tl.constexpr,
) -> None:
    """Writes the images of the first ``count`` bits set, in their order."""
    index = begin_of(SIZE) + tl.arange(0, SIZE)
    left = tl.load(words + index)
    many = ones(left)
    slot = tl.load(upto + tl.program_id(0)) - tl.sum(many) + tl.cumsum(many, 0) - many
    while some(left):
        bit = left & -left
        place = (index * 32 + number(bit)).to(tl.uint32)
        image = _permuted(place, keys, rounds, lower, upper)
        tl.store(out + slot, image.to(tl.int32), mask=(left != 0) & (slot < count))
        slot += (left != 0).to(tl.int32)
        left ^= bit


def fill_noise(out: Tensor, stream: int) -> None:
    """Fills ``out`` (float32) with the first numbers of a stream (``randomness.stream``)."""
    launch(_noise, -(-out.numel() // BLOCK), out, stream, out.numel(), SIZE=BLOCK)


def distinct(numel: int, count: int, keys: Tensor, lower: int, upper: int, candidates: int) -> Tensor:
    """Returns the first ``count`` images below ``numel`` (int32) of a permutation; -1 where candidates are too few.

    Args:
        numel: Number of positions.
        count: How many to return.
        keys: int64 on the device, one per round.
        lower: Bits of the lower half.
        upper: Bits of the upper half.
        candidates: Numbers 0 to ``candidates - 1`` are tried.
    """
    programs = -(-candidates // (32 * WORDS))
    words = torch.empty(programs * WORDS, dtype=torch.int32, device=keys.device)
    counts = torch.empty(programs, dtype=torch.int32, device=keys.device)
    out = torch.full((count,), -1, dtype=torch.int32, device=keys.device)
    shape = (keys.numel(), lower, upper)
    launch(_draw, programs, keys, words, counts, numel, *shape, SIZE=WORDS)
    upto = counts.cumsum(0, dtype=torch.int32)
    launch(_keep, programs, keys, words, upto, out, count, *shape, SIZE=WORDS)
    return out
