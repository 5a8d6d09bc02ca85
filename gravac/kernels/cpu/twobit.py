"""Blocks rounded to two magnitudes with a sign, and back."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit, room

_FINE = np.float32(1 << 23)
_LARGEST = np.float32(3.3895313892515355e38)
"""The largest finite bfloat16."""


@jit("void(float32[::1], int64, float32, float64[::1])")
def split(sizes: NDArray[np.float32], size: int, at: np.float32, means: NDArray[np.float64]) -> None:
    """Write the means of the first ``size`` of ``sizes`` that are at most ``at``, and of those above it."""
    low, high = np.int64(0), np.int64(0)
    above: Any = np.int32(0)
    for i in range(size):
        share = sizes[np.uint64(i)]
        fine, large = np.int64(np.int32(share * _FINE)), share > at
        low += np.int64(0) if large else fine
        high += fine if large else np.int64(0)
        above = np.int32(above + np.int32(large))
    means[0] = np.float64(low) / np.float64(max(1, size - above)) / np.float64(_FINE)
    means[1] = np.float64(high) / np.float64(max(1, above)) / np.float64(_FINE)


@jit(quantize_two_bits="void(float32[n], int64, int16[means], uint8[n], float32[block])")
def quantize(
    x: NDArray[np.float32],
    block: int,
    out: NDArray[np.int16],
    codes: NDArray[np.uint8],
    sizes: NDArray[np.float32],
) -> None:
    """Find the two magnitudes of each block, as bits of bfloat16, and the code of each element."""
    bits, near, means = x.view(np.int32), room(np.float32, 1), room(np.float64, 2)
    word = near.view(np.int32)
    for number in range(out.size >> 1):
        begin = number * block
        size = min(block, x.size - begin)
        largest = np.int32(0)
        for i in range(size):
            largest = max(largest, np.int32(bits[np.uint64(begin + i)] & np.int32(0x7FFFFFFF)))
        word[0] = largest
        top = near[0]
        whole = top > np.float32(0.0) and top < np.float32(np.inf)
        by = top if whole else np.float32(np.inf)
        for i in range(size):
            share = abs(x[np.uint64(begin + i)]) / by
            sizes[np.uint64(i)] = share if whole else np.float32(0.0)
        split(sizes, size, np.float32(np.inf), means)
        split(sizes, size, np.float32(means[0]), means)
        at = (np.float32(means[0]) + np.float32(means[1])) / np.float32(2.0)
        split(sizes, size, at, means)
        for part in range(2):
            near[0] = min(np.float32(means[part]) * top, _LARGEST) if whole else top
            rounded = np.int32(word[0] + 0x7FFF + ((word[0] >> 16) & 1)) >> 16  # to the nearest, ties to even
            out[2 * number + part] = np.int16(0x7FC0 if largest > np.int32(0x7F800000) else rounded)
        for i in range(size):
            code = np.int32(x[np.uint64(begin + i)] >= np.float32(0.0))
            large = np.int32(sizes[np.uint64(i)] > at)
            codes[np.uint64(begin + i)] = np.uint8(code + large + large)


@jit(dequantize_two_bits="void(int16[means], uint8[size], int64, float32[n])")
def dequantize(
    means: NDArray[np.int16], packed: NDArray[np.uint8], block: int, out: NDArray[np.float32]
) -> None:
    """Write what the codes stand for, which are packed four in a byte."""
    values = room(np.float32, 4)
    words = values.view(np.int32)
    for number in range(means.size >> 1):
        begin = number * block
        for code in range(4):
            words[code] = np.int32(means[2 * number + (code >> 1)]) << 16
            values[code] = values[code] if code & 1 else -values[code]
        for i in range(begin, min(begin + block, out.size)):
            at = np.uint64(i)
            code = packed[at >> np.uint64(2)] >> np.uint8((at & np.uint64(3)) << np.uint64(1))
            out[at] = values[np.uint64(code & np.uint8(3))]
