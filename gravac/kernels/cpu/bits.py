"""Bit packing: codes of a few bits, bit sets, and positions in the coding of Elias and Fano."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit, lowest


@jit(pack_codes="void(uint8[n], int64, uint8[size])")
def pack(codes: NDArray[np.int32], bits: int, out: NDArray[np.uint8]) -> None:
    """Pack codes below ``2**bits``, bits 1 to 31, into ``out`` of ``ceil(codes.size · bits / 8)`` bytes."""
    # A 64-bit word has room for the 31 bits of a code behind up to 31 that are waiting, and four bytes leave at once.
    word, filled, at = np.uint64(0), np.uint64(0), np.uint64(0)
    for i in range(codes.size):
        word |= np.uint64(codes[i]) << filled
        filled += np.uint64(bits)
        if filled >= np.uint64(32):
            for byte in range(4):
                out[at + np.uint64(byte)] = np.uint8(word >> np.uint64(8 * byte))
            at += np.uint64(4)
            word >>= np.uint64(32)
            filled -= np.uint64(32)
    while at < np.uint64(out.size):
        out[at] = np.uint8(word)
        at += np.uint64(1)
        word >>= np.uint64(8)


@jit(unpack_codes="void(uint8[size], int64, uint8[n])")
def unpack(packed: NDArray[np.uint8], bits: int, out: NDArray[np.int32]) -> None:
    """Unpack ``out.size`` codes that ``pack`` packed."""
    word, left, at = np.uint64(0), np.uint64(0), np.uint64(0)
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    size = np.uint64(packed.size)
    for i in range(out.size):
        if left < np.uint64(bits):
            # Four bytes at once as long as there are four, and the last ones singly.
            if at + np.uint64(4) <= size:
                for byte in range(4):
                    word |= np.uint64(packed[at + np.uint64(byte)]) << (left + np.uint64(8 * byte))
                at += np.uint64(4)
                left += np.uint64(32)
            else:
                while at < size:
                    word |= np.uint64(packed[at]) << left
                    at += np.uint64(1)
                    left += np.uint64(8)
        out[i] = word & mask
        word >>= np.uint64(bits)
        left -= np.uint64(bits)


@jit(write_positions="int64(int32[k], int64, int64, int64, uint8[size])")
def write(places: NDArray[np.int32], numel: int, low: int, size: int, out: NDArray[np.uint8]) -> int:
    """Write ascending positions into ``out``, which holds zeros.

    The ``low`` lower bits of each go into the first ``size`` bytes; then bit ``(place >> low) + i`` is set for the
    i-th, or bit ``place`` if ``low`` is 0. Return 0, with nothing written, if one is not below ``numel``.
    """
    highest = np.uint32(0)
    for i in range(places.size):
        highest = max(highest, np.uint32(places[i]))  # a negative one becomes a large one
    if places.size > 0 and highest >= numel:
        return 0
    step = np.uint64(low > 0)
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
        one = (place >> np.uint64(low)) + step * np.uint64(i)
        out[base + (one >> np.uint64(3))] |= np.uint8(1) << np.uint8(one & np.uint64(7))
    while at < base:
        out[at] = np.uint8(word)
        at += np.uint64(1)
        word >>= np.uint64(8)
    return 1


@jit(read_positions="int64(uint8[size], int64, int64, int32[k])")
def read(packed: NDArray[np.uint8], low: int, size: int, places: NDArray[np.int32]) -> int:
    """Read what ``write`` wrote. Return how many positions there are, which should be as many as fit."""
    word, left, at = np.uint64(0), np.uint64(0), np.uint64(0)
    mask = (np.uint64(1) << np.uint64(low)) - np.uint64(1)
    base, room, count = np.uint64(size), np.uint64(places.size), np.uint64(0)
    step = np.uint64(low > 0)
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
                one: Any = np.uint64(8 * (begin - size) + lowest(ones)) - step * count
                places[count] = np.int32((one << np.uint64(low)) | (word & mask))
                word >>= np.uint64(low)
                left -= np.uint64(low)
            count += np.uint64(1)
            ones &= ones - np.uint64(1)
    return np.int64(count)  # type: ignore[return-value]
