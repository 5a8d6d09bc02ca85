"""Codes below a small base packed as digits of 32-bit words, and back."""

import numpy as np
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit

_AT_ONCE = 512
"""Words made together, so that they stay in the cache."""


@jit("void(uint8[::1], int64, int64, int32[::1])")
def pack(codes: NDArray[np.uint8], base: int, digits: int, out: NDArray[np.int32]) -> None:
    """Packs codes ``j, j + m, …`` into word j of ``m = out.size``, the first lowest."""
    words = out.size
    factor = np.int32(base)
    for begin in range(0, words, _AT_ONCE):
        size = min(_AT_ONCE, words - begin)
        for j in range(size):
            out[np.uint64(begin + j)] = np.int32(0)
        for place in range(digits - 1, -1, -1):
            first = place * words + begin
            for j in range(min(size, codes.size - first)):
                at = np.uint64(begin + j)
                out[at] = np.int32(out[at] * factor + np.int32(codes[np.uint64(first + j)]))


@jit("void(uint32[::1], int64, int64, int64, uint32, uint8[::1])")
def split(
    left: NDArray[np.uint32], size: int, first: int, words: int, base: np.uint32, codes: NDArray[np.uint8]
) -> None:
    """Writes the digits of ``size`` words, lowest first, ``words`` apart from ``first`` on. Changes ``left``."""
    while first < codes.size:
        for j in range(min(size, codes.size - first)):
            rest = np.uint32(left[np.uint64(j)] // base)
            codes[np.uint64(first + j)] = np.uint8(left[np.uint64(j)] - rest * base)
            left[np.uint64(j)] = rest
        first += words


@jit("void(int32[::1], int64, uint8[::1])")
def unpack(packed: NDArray[np.int32], base: int, codes: NDArray[np.uint8]) -> None:
    """Unpacks what ``pack`` packed."""
    words = packed.size
    left = np.empty(_AT_ONCE, np.uint32)
    for begin in range(0, words, _AT_ONCE):
        size = min(_AT_ONCE, words - begin)
        for j in range(size):
            left[j] = np.uint32(packed[np.uint64(begin + j)])
        # A divisor that the compiler knows costs a multiplication instead of a division.
        if base == 2:
            split(left, size, begin, words, np.uint32(2), codes)
        elif base == 3:
            split(left, size, begin, words, np.uint32(3), codes)
        elif base == 5:
            split(left, size, begin, words, np.uint32(5), codes)
        elif base == 7:
            split(left, size, begin, words, np.uint32(7), codes)
        else:
            split(left, size, begin, words, np.uint32(16), codes)
