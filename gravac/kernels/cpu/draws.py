"""Positions that follow from a seed: see gravac.kernels.draws."""

import numpy as np
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit, room

_PIECE = 512


@jit("void(uint32[::1], uint32, uint32, uint32[::1])")
def turn(given: NDArray[np.uint32], key: np.uint32, mask: np.uint32, half: NDArray[np.uint32]) -> None:
    """Compute ``half ^= f(given, key)``, f a function of 32 bits with no visible pattern (the end of MurmurHash3)."""
    for i in range(half.size):
        word = np.uint32(given[i] * np.uint32(0x9E3779B1) + key)
        word = np.uint32((word ^ (word >> np.uint32(16))) * np.uint32(0x85EBCA6B))
        word = np.uint32((word ^ (word >> np.uint32(13))) * np.uint32(0xC2B2AE35))
        half[i] ^= (word ^ (word >> np.uint32(16))) & mask


@jit(distinct="void(int64, int64[keys], int64, int64, int32[n])")
def distinct(numel: int, keys: NDArray[np.int64], lower: int, upper: int, out: NDArray[np.int32]) -> None:
    """Write the images below ``numel`` of 0, 1, 2, … under a permutation of ``lower + upper`` bits, until ``out`` is
    full.

    ``keys``: one per round, an even number of them.
    """
    left, right = room(np.uint32, _PIECE), room(np.uint32, _PIECE)
    low_mask, high_mask = np.uint32((1 << lower) - 1), np.uint32((1 << upper) - 1)
    taken, first = 0, 0
    while taken < out.size:
        for i in range(_PIECE):
            left[i] = np.uint32((first + i) >> lower) & high_mask
            right[i] = np.uint32(first + i) & low_mask
        for number in range(0, keys.size, 2):
            turn(right, np.uint32(keys[number]), high_mask, left)
            turn(left, np.uint32(keys[number + 1]), low_mask, right)
        # A permutation of the next power of two, so some images are too large. Leaving those out keeps the others a
        # permutation of the positions.
        for i in range(min(_PIECE, (1 << (lower + upper)) - first)):
            image = (np.int64(left[i]) << lower) | np.int64(right[i])
            if image < numel and taken < out.size:
                out[taken] = np.int32(image)
                taken += 1
        first += _PIECE


@jit(global_positions="void(int32[k], int64, int64, int64, int32[k])")
def global_positions(
    rows: NDArray[np.int32], owner: int, ranks: int, seed: int, places: NDArray[np.int32]
) -> None:
    """Compute the positions of these rows of an owner's share."""
    n, first, mine = np.uint32(ranks), np.uint32(seed), np.uint32(owner)
    for i in range(rows.size):
        row = np.uint32(rows[i])
        mixed = np.uint32(np.uint32((row + first) & np.uint32(0x7FFFFFFF)) * np.uint32(0x9E3779B1))
        turns = (mixed >> np.uint32(16)) * n >> np.uint32(16)
        places[i] = np.int32(row * n + mine - turns + (n if mine < turns else np.uint32(0)))
