"""Places as Elias and Fano write them, in one pass: see ``gravac.kernels.positions``."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gravac.kernels.cpu.bits import lowest
from gravac.kernels.cpu.build import jit


@jit("void(int32[::1], int64, int64, uint8[::1])")
def write(places: NDArray[np.int32], low: int, size: int, out: NDArray[np.uint8]) -> None:
    """Ascending places into ``out``, which holds zeros: the ``low`` lower bits of each in the first ``size`` bytes,
    then for the i-th place the bit ``(place >> low) + i``."""
    word, filled, at = np.uint64(0), np.uint64(0), np.uint64(0)
    mask = (np.uint64(1) << np.uint64(low)) - np.uint64(1)
    base = np.uint64(size)
    for i in range(places.size):
        place = np.uint64(np.uint32(places[np.uint64(i)]))
        word |= (place & mask) << filled
        filled += np.uint64(low)
        if filled >= np.uint64(32):
            for byte in range(4):
                out[at + np.uint64(byte)] = np.uint8(word >> np.uint64(8 * byte))
            at += np.uint64(4)
            word >>= np.uint64(32)
            filled -= np.uint64(32)
        one = (place >> np.uint64(low)) + np.uint64(i)
        out[base + (one >> np.uint64(3))] |= np.uint8(1) << np.uint8(one & np.uint64(7))
    while at < base:
        out[at] = np.uint8(word)
        at += np.uint64(1)
        word >>= np.uint64(8)


@jit("int64(uint8[::1], int64, int64, int32[::1])")
def read(packed: NDArray[np.uint8], low: int, size: int, places: NDArray[np.int32]) -> int:
    """Inverse of ``write``; how many places there are, which should be as many as fit."""
    word, left, at = np.uint64(0), np.uint64(0), np.uint64(0)
    mask = (np.uint64(1) << np.uint64(low)) - np.uint64(1)
    base, room, count = np.uint64(size), np.uint64(places.size), np.uint64(0)
    for begin in range(size, packed.size, 8):
        ones = np.uint64(0)
        for byte in range(min(8, packed.size - begin)):
            ones |= np.uint64(packed[np.uint64(begin + byte)]) << np.uint64(8 * byte)
        while ones != np.uint64(0):
            if count < room:
                if left < np.uint64(low):
                    if at + np.uint64(4) <= base:
                        for byte in range(4):
                            word |= np.uint64(packed[at + np.uint64(byte)]) << (left + np.uint64(8 * byte))
                        at += np.uint64(4)
                        left += np.uint64(32)
                    else:
                        while at < base:
                            word |= np.uint64(packed[at]) << left
                            at += np.uint64(1)
                            left += np.uint64(8)
                one: Any = np.uint64(8 * (begin - size) + lowest(ones)) - count
                places[count] = np.int32((one << np.uint64(low)) | (word & mask))
                word >>= np.uint64(low)
                left -= np.uint64(low)
            count += np.uint64(1)
            ones &= ones - np.uint64(1)
    return np.int64(count)  # type: ignore[return-value]
