"""Blocks rounded to the nearest of a few levels, and back."""

import numpy as np
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit, room

_FINE = 4095
_SHIFT = 20
_HALF = 1 << 19
_LARGEST = 3.3895313892515355e38
"""The largest finite bfloat16."""


@jit("float32(int32[::1], int64, int64, int32[::1])")
def search(fine: NDArray[np.int32], size: int, steps: int, factors: NDArray[np.int32]) -> np.float32:
    """Return the best spacing of ``size`` magnitudes, in their unit. There are three ``factors``.

    Each factor rounds the magnitudes m to levels l. By least squares, the spacing Σ l·m / Σ l² fits these best; it
    keeps the energy (Σ l·m)² / Σ l². All three are tried in one loop: over one block, ending a loop counts.
    """
    most, half = np.int32(steps), np.int32(_HALF)
    first, second, third = factors[0], factors[1], factors[2]
    product, square = np.int32(0), np.int32(0)
    product2, square2 = np.int32(0), np.int32(0)
    product3, square3 = np.int32(0), np.int32(0)
    for i in range(size):
        value = fine[np.uint64(i)]
        level = min(np.int32(np.int32(value * first + half) >> np.int32(_SHIFT)), most)
        product = np.int32(product + level * value)
        square = np.int32(square + level * level)
        level = min(np.int32(np.int32(value * second + half) >> np.int32(_SHIFT)), most)
        product2 = np.int32(product2 + level * value)
        square2 = np.int32(square2 + level * level)
        level = min(np.int32(np.int32(value * third + half) >> np.int32(_SHIFT)), most)
        product3 = np.int32(product3 + level * value)
        square3 = np.int32(square3 + level * level)
    # The largest magnitude has a level above zero, so no square is zero.
    upper, lower = np.float32(product), np.float32(square)
    kept = upper * upper / lower
    upper2, lower2 = np.float32(product2), np.float32(square2)
    kept2 = upper2 * upper2 / lower2
    upper3, lower3 = np.float32(product3), np.float32(square3)
    kept3 = upper3 * upper3 / lower3
    if kept2 > kept:
        kept, upper, lower = kept2, upper2, lower2
    if kept3 > kept:
        upper, lower = upper3, lower3
    return upper / lower


@jit("float32(int32[::1], int64)")
def mean(fine: NDArray[np.int32], size: int) -> np.float32:
    """Return the mean of ``size`` magnitudes."""
    total = np.int32(0)
    for i in range(size):
        total = np.int32(total + fine[np.uint64(i)])
    return np.float32(total) / np.float32(size)


@jit(
    quantize_nearest="void(float32[n], int64, int64, int32[factors], float32, float32, int16[blocks], uint8[codes], "
    "int32[block])"
)
def quantize(
    x: NDArray[np.float32],
    block: int,
    steps: int,
    factors: NDArray[np.int32],
    spread: np.float32,
    widest: np.float32,
    spacings: NDArray[np.int16],
    codes: NDArray[np.uint8],
    fine: NDArray[np.int32],
) -> None:
    """Find the spacing of each block, as the bits of a bfloat16, and the code of each element.

    The spacing is the best one times ``spread``, but at most ``widest`` times the largest magnitude. Without
    ``factors``, the code of elements >= 0 is 1, and 0 for the others. If ``codes`` is empty, only spacings are found.
    ``fine`` is spare room for a block.
    """
    bits = x.view(np.int32)
    limit = np.float32(_LARGEST / steps)  # the outermost level, too, must be finite
    top, near = room(np.int32, 1), room(np.float32, 1)
    for number in range(spacings.size):
        begin = number * block
        size = min(block, x.size - begin)
        largest = np.int32(0)
        for i in range(size):
            # The bits of magnitudes order as they do, and unlike floats compare NaN as larger than all.
            largest = max(largest, np.int32(bits[np.uint64(begin + i)] & np.int32(0x7FFFFFFF)))
        top[0] = largest
        scale = top.view(np.float32)[0]
        whole = scale > np.float32(0.0) and scale < np.float32(np.inf)
        near[0] = scale
        if whole:
            for i in range(size):
                share = abs(x[np.uint64(begin + i)]) / scale
                fine[np.uint64(i)] = np.int32(share * np.float32(_FINE) + np.float32(0.5))
            ratio = search(fine, size, steps, factors) if factors.size else mean(fine, size)
            near[0] = min(min(ratio / np.float32(_FINE) * scale * spread, scale * widest), limit)
        word = near.view(np.int32)[0]
        if whole:  # to the nearest bfloat16, ties to even
            word = np.int32(word + 0x7FFF + ((word >> 16) & 1)) >> 16
        elif largest > np.int32(0x7F800000):  # NaN, whose upper half alone might read as infinity
            word = 0x7FC0
        else:
            word >>= 16
        spacings[number] = np.int16(word)
        if not codes.size:
            continue
        if not factors.size:
            for i in range(size):
                codes[np.uint64(begin + i)] = np.uint8(x[np.uint64(begin + i)] >= np.float32(0.0))
            continue
        top[0] = np.int32(word << 16)
        # As the receiver has it, so that codes are nearest to what it decodes.
        spacing = top.view(np.float32)[0]
        if whole and spacing > np.float32(0.0):
            most = np.float32(steps)
            for i in range(size):
                level = x[np.uint64(begin + i)] / spacing
                level = min(max(level, -most), most)
                codes[np.uint64(begin + i)] = np.uint8(np.int32(np.rint(level) + most))
        else:
            for i in range(size):
                codes[np.uint64(begin + i)] = np.uint8(steps)


@jit(dequantize_nearest="void(float32[blocks], uint8[n], int64, int64, int64, float32[n])")
def dequantize(
    spacings: NDArray[np.float32],
    codes: NDArray[np.uint8],
    block: int,
    factor: int,
    offset: int,
    out: NDArray[np.float32],
) -> None:
    """Compute ``(code · factor - offset) · spacing``."""
    by, less = np.int32(factor), np.int32(offset)
    for number in range(spacings.size):
        begin, spacing = number * block, spacings[number]
        for i in range(min(block, out.size - begin)):
            level = np.int32(np.int32(codes[np.uint64(begin + i)]) * by - less)
            out[np.uint64(begin + i)] = np.float32(level) * spacing
