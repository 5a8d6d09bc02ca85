"""Blocks rounded to the nearest of a few levels, and back."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from gravac.kernels.cpu.build import fused, jit, room

_FINE = 4095
_SHIFT = 20
_LARGEST = 3.3895313892515355e38
"""The largest finite bfloat16."""
_AT_ONCE = 64
"""Most blocks treated at a time."""
_WIDTH = 32
_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_HALVES, _WORDS = ir.VectorType(_I16, _WIDTH), ir.VectorType(_I32, _WIDTH)


def _fit(typing: Any, fine: Any, size: Any, steps: Any, factors: Any, sums: Any) -> Any:
    """Write Σ l·m and Σ l² for each of three ``factors``, which round the magnitudes m to levels l.

    The magnitudes have 16 bits, and behind ``size`` zeros up to a multiple of 32. It is written as vectors by hand:
    a loop would widen them to 32 bits, and work on half as many at a time.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def every(value: Any, kind: Any) -> Any:
            nothing = ir.Constant(kind, ir.Undefined)
            first = builder.insert_element(nothing, value, ir.Constant(_I32, 0))
            zeros = ir.Constant(ir.VectorType(_I32, kind.count), [0] * kind.count)
            return builder.shuffle_vector(first, nothing, zeros)

        def halves(word: int) -> Any:
            return ir.Constant(_HALVES, [word] * _WIDTH)

        def pairs(x: Any, y: Any) -> Any:
            products = builder.mul(builder.sext(x, _WORDS), builder.sext(y, _WORDS))
            picked = (
                builder.shuffle_vector(
                    products,
                    products,
                    ir.Constant(ir.VectorType(_I32, _WIDTH // 2), list(range(odd, _WIDTH, 2))),
                )
                for odd in (0, 1)
            )
            return builder.add(*picked)

        m, table, out = (
            context.make_array(signature.args[number])(context, builder, args[number]).data
            for number in (0, 3, 4)
        )
        most = every(builder.trunc(args[2], _I16), _HALVES)
        half = ir.VectorType(_I32, _WIDTH // 2)
        places = [ir.Constant(_I64, number) for number in range(6)]
        nothing = ir.Constant(half, [0] * (_WIDTH // 2))
        totals = [
            cgutils.alloca_once_value(builder, nothing)  # type: ignore[no-untyped-call]
            for _ in places
        ]
        with cgutils.for_range_slice(
            builder, ir.Constant(_I64, 0), args[1], ir.Constant(_I64, _WIDTH), _I64
        ) as (at, _):
            near = builder.bitcast(builder.gep(m, [at]), _HALVES.as_pointer())
            values = builder.load(near, align=2)
            for number in range(3):
                # Read again, and so that it must be: else it is widened before the loop, and then a product of 16 bits
                # is not recognized.
                factor = builder.load_atomic(builder.gep(table, [places[number]]), "monotonic", 4)
                factor = every(builder.trunc(factor, _I16), _HALVES)
                product = builder.mul(builder.zext(values, _WORDS), builder.zext(factor, _WORDS))
                upper = builder.trunc(builder.lshr(product, ir.Constant(_WORDS, [16] * _WIDTH)), _HALVES)
                level = builder.ashr(builder.add(upper, halves(8)), halves(_SHIFT - 16))
                level = builder.select(builder.icmp_signed("<", level, most), level, most)
                for total, other in ((totals[2 * number], values), (totals[2 * number + 1], level)):
                    builder.store(builder.add(builder.load(total), pairs(level, other)), total)
        whole = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, ir.FunctionType(_I32, [half]), f"llvm.vector.reduce.add.v{_WIDTH // 2}i32"
        )
        for place, total in zip(places, totals, strict=True):
            builder.store(builder.call(whole, [builder.load(total)]), builder.gep(out, [place]))
        return context.get_dummy_value()

    return types.void(fine, types.int64, types.int32, factors, sums), emit


fit: Any = intrinsic(_fit)


@jit("float32(int16[::1], int64, int64, int32[::1])")
def search(fine: NDArray[np.int16], size: int, steps: int, factors: NDArray[np.int32]) -> np.float32:
    """Return the best spacing of ``size`` magnitudes, in their unit. There are three ``factors``.

    By least squares, the spacing Σ l·m / Σ l² fits the levels of a factor best; it keeps the energy (Σ l·m)² / Σ l².
    """
    sums = room(np.int32, 6)
    fit(fine, size, np.int32(steps), factors, sums)
    product, square, product2, square2, product3, square3 = (
        sums[0],
        sums[1],
        sums[2],
        sums[3],
        sums[4],
        sums[5],
    )
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


@jit("float32(int16[::1], int64)")
def mean(fine: NDArray[np.int16], size: int) -> np.float32:
    """Return the mean of ``size`` magnitudes."""
    total = np.int32(0)
    for i in range(size):
        total = np.int32(total + np.int32(fine[np.uint64(i)]))
    return np.float32(total) / np.float32(size)


@jit("float64(float32[::1], int64, int64, uint8[::1])", in_any_order=True)
def signs(x: NDArray[np.float32], begin: int, size: int, codes: NDArray[np.uint8]) -> float:
    """Write the signs of a block, and return the sum of its magnitudes."""
    total = 0.0
    for i in range(size):
        value = x[np.uint64(begin + i)]
        codes[np.uint64(begin + i)] = np.uint8(value >= np.float32(0.0))
        total += np.float64(abs(value))
    return total


@jit("void(float32[::1], int64, int64, float32, float32, uint8[::1], float32[::1])", in_any_order=True)
def levels(
    x: NDArray[np.float32],
    begin: int,
    size: int,
    spacing: np.float32,
    most: np.float32,
    codes: NDArray[np.uint8],
    found: NDArray[np.float32],
) -> None:
    """Write the codes of a block, and to ``found`` the sums of l² and of l·x / spacing, with l the levels."""
    square, product = np.float32(0.0), np.float32(0.0)
    for i in range(size):
        share = x[np.uint64(begin + i)] / spacing
        level = np.rint(min(max(share, -most), most))
        codes[np.uint64(begin + i)] = np.uint8(np.int32(level + most))
        square += level * level
        product += level * share
    found[0], found[1] = square, product


@jit(
    quantize_nearest="void(float32[n], int64, int64, int32[factors], float32, float32, int16[blocks], uint8[codes], "
    "int16[room], float64[2])"
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
    fine: NDArray[np.int16],
    sums: NDArray[np.float64],
) -> None:
    """Find the spacing of each block, as the bits of a bfloat16, and the code of each element.

    The spacing is the best one times ``spread``, but at most ``widest`` times the largest magnitude. Without
    ``factors``, the code of elements >= 0 is 1, and 0 for the others. If ``codes`` is empty, only spacings are found.
    ``fine`` is spare room for a few blocks, each up to a multiple of 32 elements. To ``sums`` are added the energy of
    what is decoded, and its product with x.
    """
    # A few blocks at a time, as the steps of one depend on each other and those of several do not.
    bits = x.view(np.int32)
    limit = np.float32(_LARGEST / steps)  # the outermost level, too, must be finite
    near, found = room(np.float32, _AT_ONCE), room(np.float32, 2)
    words = near.view(np.int32)
    width = block + 31 & ~31
    several = min(_AT_ONCE, fine.size // width)
    for first in range(0, spacings.size, several):
        count = min(several, spacings.size - first)
        for j in range(count):
            begin = (first + j) * block
            size = min(block, x.size - begin)
            largest = np.int32(0)
            for i in range(size):
                # The bits of magnitudes order as they do, and unlike floats compare NaN as larger than all.
                largest = max(largest, np.int32(bits[np.uint64(begin + i)] & np.int32(0x7FFFFFFF)))
            words[j] = largest
            scale = near[j]
            for i in range(size):
                share = abs(x[np.uint64(begin + i)]) / scale
                fine[np.uint64(j * width + i)] = np.int16(
                    np.int32(share * np.float32(_FINE) + np.float32(0.5))
                )
            for i in range(size, width):
                fine[np.uint64(j * width + i)] = np.int16(0)
        for j in range(count):
            scale, word = near[j], words[j]
            size = min(block, x.size - (first + j) * block)
            if scale > np.float32(0.0) and scale < np.float32(np.inf):
                own = fine[j * width : (j + 1) * width]
                ratio = search(own, width, steps, factors) if factors.size else mean(own, size)
                near[j] = min(min(ratio / np.float32(_FINE) * scale * spread, scale * widest), limit)
                word = words[j]
                word = np.int32(word + 0x7FFF + ((word >> 16) & 1)) >> 16  # to the nearest, ties to even
            elif word > np.int32(0x7F800000):  # NaN, whose upper half alone might read as infinity
                word = 0x7FC0
            else:
                word >>= 16
            spacings[first + j] = np.int16(word)
            # As the receiver has it, so that codes are nearest to what it decodes.
            words[j] = np.int32(word << 16)
        for j in range(count if codes.size else 0):
            begin, spacing = (first + j) * block, near[j]
            size = min(block, x.size - begin)
            wide = np.float64(spacing)
            if not factors.size:
                length = signs(x, begin, size, codes)
                sums[0] += wide * wide * np.float64(size)
                sums[1] += wide * length
            elif spacing > np.float32(0.0) and spacing < np.float32(np.inf):
                levels(x, begin, size, spacing, np.float32(steps), codes, found)
                sums[0] += wide * wide * np.float64(found[0])
                sums[1] += wide * wide * np.float64(found[1])
            else:
                for i in range(size):
                    codes[np.uint64(begin + i)] = np.uint8(steps)
                sums[0] += wide * np.float64(0.0)  # NaN where it is not finite
                sums[1] += wide * np.float64(0.0)


@jit(add_nearest="void(int16[blocks], uint8[n], int64, float32, float32, float32, float32[n])")
def add(
    spacings: NDArray[np.int16],
    codes: NDArray[np.uint8],
    block: int,
    factor: np.float32,
    offset: np.float32,
    scale: np.float32,
    out: NDArray[np.float32],
) -> None:
    """Add ``scale · (code · factor - offset) · spacing``; the last sum and product are rounded once."""
    near = room(np.int32, 1)
    for number in range(spacings.size):
        begin = number * block
        near[0] = np.int32(spacings[number]) << 16
        spacing = near.view(np.float32)[0]
        for i in range(min(block, out.size - begin)):
            at = np.uint64(begin + i)
            level = np.float32(codes[at]) * factor - offset
            out[at] = fused(level * spacing, scale, out[at])
