"""Codes below a small base packed as digits of words, and back."""

import numpy as np
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit, room

_AT_ONCE = 512
"""Words made together, so that they stay in the cache."""


@jit(
    pack_digits="void(uint8[n], int64, int64, int32[words])",
    pack_byte_digits="void(uint8[n], int64, int64, uint8[words])",
)
def pack(codes: NDArray[np.uint8], base: int, digits: int, out: NDArray[np.int32]) -> None:
    """Pack codes ``j, j + m, …`` into word j of ``m = out.size``, the first lowest."""
    words = out.size
    factor = np.int32(base)
    for begin in range(0, words, _AT_ONCE):
        size = min(_AT_ONCE, words - begin)
        for j in range(size):
            out[np.uint64(begin + j)] = np.int32(0)
        for place in range(digits - 1, -1, -1):
            # Neighboring words take neighboring codes, so that one vector instruction serves several words.
            first = place * words + begin
            for j in range(min(size, codes.size - first)):
                at = np.uint64(begin + j)
                out[at] = np.int32(out[at] * factor + np.int32(codes[np.uint64(first + j)]))


@jit(
    unpack_digits="void(int32[words], int64, int64, int64, uint8[n])",
    unpack_byte_digits="void(uint8[words], int64, int64, int64, uint8[n])",
)
def unpack(packed: NDArray[np.int32], base: int, factor: int, shift: int, codes: NDArray[np.uint8]) -> None:
    """Unpack what ``pack`` packed. ``word · factor >> shift`` is ``word // base``."""
    words = packed.size
    times, by, of = np.uint64(factor), np.uint64(shift), np.uint64(base)
    left = room(np.uint64, _AT_ONCE)
    for begin in range(0, words, _AT_ONCE):
        size = min(_AT_ONCE, words - begin)
        for j in range(size):
            left[np.uint64(j)] = np.uint64(np.uint32(packed[np.uint64(begin + j)]))
        for first in range(begin, codes.size, words):
            for j in range(min(size, codes.size - first)):
                word = left[np.uint64(j)]
                rest = (word * times) >> by
                codes[np.uint64(first + j)] = np.uint8(word - rest * of)
                left[np.uint64(j)] = rest
