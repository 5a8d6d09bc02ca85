"""Different places at random, in the order of a seed's permutation."""

import numpy as np
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit

_PIECE = 512


@jit("void(uint32[::1], uint32, uint32, uint32[::1])")
def turn(given: NDArray[np.uint32], key: np.uint32, mask: np.uint32, half: NDArray[np.uint32]) -> None:
    """``half ^= f(given, key)``, f a function of 32 bits with no visible pattern (the end of MurmurHash3)."""
    for i in range(half.size):
        word = np.uint32(given[i] * np.uint32(0x9E3779B1) + key)
        word = np.uint32((word ^ (word >> np.uint32(16))) * np.uint32(0x85EBCA6B))
        word = np.uint32((word ^ (word >> np.uint32(13))) * np.uint32(0xC2B2AE35))
        half[i] ^= (word ^ (word >> np.uint32(16))) & mask


@jit("void(int64, int64[::1], int64, int64, int32[::1])")
def distinct(numel: int, keys: NDArray[np.int64], lower: int, upper: int, out: NDArray[np.int32]) -> None:
    """The images below ``numel`` of 0, 1, 2, … under a permutation of numbers of ``lower + upper`` bits, until ``out``
    is full. ``keys``: one a round, an even number of them."""
    left, right = np.empty(_PIECE, np.uint32), np.empty(_PIECE, np.uint32)
    low_mask, high_mask = np.uint32((1 << lower) - 1), np.uint32((1 << upper) - 1)
    taken, first = 0, 0
    while taken < out.size:
        for i in range(_PIECE):
            left[i] = np.uint32((first + i) >> lower) & high_mask
            right[i] = np.uint32(first + i) & low_mask
        for number in range(0, keys.size, 2):
            turn(right, np.uint32(keys[number]), high_mask, left)
            turn(left, np.uint32(keys[number + 1]), low_mask, right)
        for i in range(min(_PIECE, (1 << (lower + upper)) - first)):
            image = (np.int64(left[i]) << lower) | np.int64(right[i])
            if image < numel and taken < out.size:
                out[taken] = np.int32(image)
                taken += 1
        first += _PIECE
