"""One pass over a gradient: add the residual, count bins, sum their energies."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit, room

_BLOCK = 512
"""Elements treated at a time: their bins and squares stay in the first-level cache (6 kB)."""
_LANES = 2
"""Tables side by side, so that neighbors in the same bin need not wait for each other's sum. More would not fit the
first-level cache."""
_ROW = 2 * _LANES
_FLUSH = 65536 * _LANES
"""Squares of 24-bit numbers that fit a 64-bit sum in every lane."""
_BINS = 4096
_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _bump(typing: Any, table: Any, at: Any, square: Any) -> Any:
    """Add 1 to ``table[at]`` and ``square`` to ``table[at + 1]``, in one load, sum and store of 16 bytes."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair = ir.VectorType(_I64, 2)
        place = builder.gep(_data(context, builder, signature, args, 0), [args[1]])
        place = builder.bitcast(place, pair.as_pointer())
        more = builder.insert_element(ir.Constant(pair, [1, 0]), args[2], ir.Constant(_I32, 1))
        builder.store(builder.add(builder.load(place, align=8), more), place, align=8)
        return context.get_dummy_value()

    return types.void(table, types.int64, types.int64), emit


def _ahead(typing: Any, array: Any, at: Any) -> Any:
    """Ask for the cache line of ``array[at]`` early. Beyond the end of the array it does nothing."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        )
        place = builder.gep(_data(context, builder, signature, args, 0), [args[1]])
        builder.call(
            function, [builder.bitcast(place, byte), *(ir.Constant(_I32, word) for word in (0, 3, 1))]
        )
        return context.get_dummy_value()

    return types.void(array, types.int64), emit


def _fold(typing: Any, sums: Any, x: Any, y: Any, at: Any) -> Any:
    """Add ``x[i] * y[i]`` to ``sums[lane]`` in float64, for the 64 elements from ``at``, in 8 lanes."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        singles, doubles = ir.VectorType(ir.FloatType(), 8), ir.VectorType(ir.DoubleType(), 8)
        accumulator = builder.bitcast(_data(context, builder, signature, args, 0), doubles.as_pointer())
        total = builder.load(accumulator, align=8)
        for step in range(0, 64, 8):
            at = builder.add(args[3], ir.Constant(_I64, step))
            factors = []
            for number in (1, 2):
                place = builder.gep(_data(context, builder, signature, args, number), [at])
                eight = builder.load(builder.bitcast(place, singles.as_pointer()), align=4)
                factors.append(builder.fpext(eight, doubles))
            total = builder.fadd(total, builder.fmul(*factors))
        builder.store(total, accumulator, align=8)
        return context.get_dummy_value()

    return types.void(sums, x, y, types.int64), emit


def _data(context: Any, builder: Any, signature: Any, args: Any, number: int) -> Any:
    return context.make_array(signature.args[number])(context, builder, args[number]).data


bump: Any = intrinsic(_bump)
ahead: Any = intrinsic(_ahead)
fold: Any = intrinsic(_fold)


@jit("void(float32[::1], float32[::1], float32, float32[::1], int64, int64)")
def add(
    g: NDArray[np.float32],
    e: NDArray[np.float32],
    share: np.float32,
    p: NDArray[np.float32],
    begin: int,
    end: int,
) -> None:
    """Compute ``p = g + share·e`` with two roundings, as all backends do; ``p = g`` if ``e`` is empty."""
    if e.size > 0:
        for i in range(begin, end):
            p[np.uint64(i)] = g[np.uint64(i)] + share * e[np.uint64(i)]
    else:
        for i in range(begin, end):
            p[np.uint64(i)] = g[np.uint64(i)]


@jit("void(float32[::1], float32, float32[::1], int64, int64)")
def add_over(g: NDArray[np.float32], share: np.float32, p: NDArray[np.float32], begin: int, end: int) -> None:
    """Compute ``p = g + share·p``, where elements of ``g`` that are not finite count as 0."""
    for i in range(begin, end):
        fresh = g[np.uint64(i)]
        clean = fresh if abs(fresh) < np.float32(np.inf) else np.float32(0.0)
        p[np.uint64(i)] = clean + share * p[np.uint64(i)]


@jit("void(float32[::1], float32[::1], int64, int64, float64[::1])")
def multiply(
    x: NDArray[np.float32], y: NDArray[np.float32], begin: int, end: int, sums: NDArray[np.float64]
) -> None:
    """Add x·y to ``sums``, spread over lanes."""
    whole = begin + ((end - begin) & ~63)
    for i in range(begin, whole, 64):
        fold(sums, x, y, i)
    for i in range(whole, end):
        sums[0] += np.float64(x[i]) * np.float64(y[i])


@jit("void(int32[::1], int64, int64, int32[::1], int64[::1])")
def split(
    bits: NDArray[np.int32], begin: int, size: int, rows: NDArray[np.int32], squares: NDArray[np.int64]
) -> None:
    """Write the place in the table and the square of the significand of ``size`` floats."""
    for i in range(size):
        magnitude = bits[np.uint64(begin + i)] & np.int32(0x7FFFFFFF)
        rows[i] = (magnitude >> np.int32(19)) * np.int32(_ROW)
        hidden = np.int32(0x800000) if magnitude >= np.int32(0x800000) else np.int32(0)
        significand = np.int64(np.uint32((magnitude & np.int32(0x7FFFFF)) | hidden))
        squares[i] = significand * significand


@jit("void(int64[::1], int32[::1], int64[::1], int64, int32[::1], float32[::1], float32[::1], int64)")
def scatter(
    table: NDArray[np.int64],
    rows: NDArray[np.int32],
    squares: NDArray[np.int64],
    size: int,
    bits: NDArray[np.int32],
    g: NDArray[np.float32],
    e: NDArray[np.float32],
    following: int,
) -> None:
    """Count ``size`` elements, and ask for the cache lines of the ``following`` ones, which arrive meanwhile."""
    whole = size & ~15
    for i in range(0, whole, 16):
        ahead(bits, following + i)
        if e.size > 0:
            ahead(g, following + i)
            ahead(e, following + i)
        for lane in range(16):
            row = np.int64(np.uint32(rows[np.uint64(i + lane)]))
            bump(table, row + 2 * (lane & (_LANES - 1)), squares[np.uint64(i + lane)])
    for i in range(whole, size):
        bump(table, np.int64(np.uint32(rows[np.uint64(i)])), squares[np.uint64(i)])


@jit("void(int64[::1], int64[::1])")
def flush(table: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    """Move the lanes' sums to ``out``."""
    for row in range(_BINS):
        for lane in range(_LANES):
            at = row * _ROW + 2 * lane
            square = np.uint64(table[at + 1])
            out[row] += table[at]
            out[_BINS + row] += np.int64(square >> np.uint64(24))
            out[2 * _BINS + row] += np.int64(square & np.uint64(0xFFFFFF))
            table[at] = 0
            table[at + 1] = 0


@jit(
    tally="void(float32[fresh], float32[old], float32, float32[n], int64[12288], float64[sums], int64, int64[16384])"
)
def tally(
    g: NDArray[np.float32],
    e: NDArray[np.float32],
    share: np.float32,
    p: NDArray[np.float32],
    out: NDArray[np.int64],
    sums: NDArray[np.float64],
    over: int,
    table: NDArray[np.int64],
) -> None:
    """Compute ``p = g + share·e`` and count p by magnitude.

    Args:
        g: The gradient; empty if p holds the sum already.
        e: The residual; empty if there is none.
        share: Factor of the residual.
        p: Receives the sum.
        out: Shape ``(3, 4096)``. By bin, the count and the sum of squares are added, the latter split into multiples of
            2^24 and the rest. Squares are of the 24-bit significands.
        sums: Shape ``(2, 8)``. g·g and e·g are added, spread over lanes; empty if they are not wanted.
        over: Whether ``e`` is ``p`` itself; see ``add_over``.
        table: Room for ``4 * 4096`` numbers, all zero. They are zero again afterwards.
    """
    n, bits = p.size, p.view(np.int32)
    rows = room(np.int32, _BLOCK)
    squares = room(np.int64, _BLOCK)
    since = 0
    for begin in range(0, n, _BLOCK):
        end = min(begin + _BLOCK, n)
        if sums.size > 0:
            multiply(g, g, begin, end, sums[:8])
            if e.size > 0:
                multiply(g, e, begin, end, sums[8:])
        if over:
            add_over(g, share, p, begin, end)
        elif g.size > 0:
            add(g, e, share, p, begin, end)
        split(bits, begin, end - begin, rows, squares)
        scatter(table, rows, squares, end - begin, bits, g, e, end)
        since += _BLOCK  # a lane's sum of squares must not leave 64 bits
        if since >= _FLUSH or end == n:
            since = 0
            flush(table, out)
