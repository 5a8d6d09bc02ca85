"""One pass over a gradient with a known threshold: add the residual, measure, pick the elements above it."""

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit, lowest, room

_MAGNITUDE = np.int32(0x7FFFFFFF)
_WIDTH = 8
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_SINGLES, _WORDS, _DOUBLES = (
    ir.VectorType(kind, _WIDTH) for kind in (ir.FloatType(), ir.IntType(32), ir.DoubleType())
)


def _emit(with_residual: bool, over: bool, context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Emit the code of one block of 64 elements, which ``_add_with_residual`` describes.

    It is written as vectors by hand because it also makes one word of bits of a block. The product with the share is
    rounded before it is added, so that p has the same bits as that of ``tally``.
    """
    g, e, p, sums = (
        context.make_array(signature.args[number])(context, builder, args[number]).data
        for number in (0, 1, 3, 4)
    )

    def every(value: Any, kind: Any) -> Any:
        nothing = ir.Constant(kind, ir.Undefined)
        first = builder.insert_element(nothing, value, ir.Constant(_I32, 0))
        return builder.shuffle_vector(first, nothing, ir.Constant(_WORDS, [0] * _WIDTH))

    def eight(data: Any, at: Any) -> Any:
        return builder.bitcast(builder.gep(data, [at]), _SINGLES.as_pointer())

    accumulators = [
        builder.bitcast(builder.gep(sums, [ir.Constant(_I64, _WIDTH * row)]), _DOUBLES.as_pointer())
        for row in range(3 if with_residual else 1)
    ]
    totals = [builder.load(accumulator, align=8) for accumulator in accumulators]
    shares, edges = every(args[2], _SINGLES), every(args[6], _WORDS)
    found = ir.Constant(_I64, 0)
    for step in range(0, 64, _WIDTH):
        at = builder.add(args[5], ir.Constant(_I64, step))
        fresh = sum_ = builder.load(eight(g, at), align=4)
        if with_residual:
            old = builder.load(eight(e, at), align=4)
            sum_ = builder.fadd(fresh, builder.fmul(shares, old))
        written = sum_
        if over:
            exponent = builder.and_(
                builder.bitcast(fresh, _WORDS), ir.Constant(_WORDS, [0x7F800000] * _WIDTH)
            )
            finite = builder.icmp_signed("!=", exponent, ir.Constant(_WORDS, [0x7F800000] * _WIDTH))
            clean = builder.select(finite, fresh, ir.Constant(_SINGLES, [0.0] * _WIDTH))
            written = builder.fadd(clean, builder.fmul(shares, old))
        builder.store(written, eight(p, at), align=4)
        wide = builder.fpext(sum_, _DOUBLES)
        factors = [(wide, wide)]
        if with_residual:
            gradient = builder.fpext(fresh, _DOUBLES)
            factors += [(gradient, gradient), (gradient, builder.fpext(old, _DOUBLES))]
        totals = [
            builder.fadd(total, builder.fmul(*pair)) for total, pair in zip(totals, factors, strict=True)
        ]
        size = builder.and_(builder.bitcast(sum_, _WORDS), ir.Constant(_WORDS, [0x7FFFFFFF] * _WIDTH))
        passed = builder.bitcast(builder.icmp_signed(">=", size, edges), ir.IntType(_WIDTH))
        found = builder.or_(found, builder.shl(builder.zext(passed, _I64), ir.Constant(_I64, step)))
    for accumulator, total in zip(accumulators, totals, strict=True):
        builder.store(total, accumulator, align=8)
    return found


def _add_with_residual(typing: Any, g: Any, e: Any, share: Any, p: Any, sums: Any, at: Any, edge: Any) -> Any:
    """Compute ``p = g + share·e`` for the 64 elements from ``at``; add p·p, g·g and e·g to ``sums``, in 8 lanes each.

    Return a bit for each element: whether its magnitude is at least ``edge``.
    """
    signature = types.uint64(g, e, types.float32, p, sums, types.int64, types.int32)
    return signature, partial(_emit, True, False)


def _add_over(typing: Any, g: Any, e: Any, share: Any, p: Any, sums: Any, at: Any, edge: Any) -> Any:
    """Do the same where ``e`` is ``p``. Elements of ``g`` that are not finite count as 0 in p; ``sums`` has them."""
    signature = types.uint64(g, e, types.float32, p, sums, types.int64, types.int32)
    return signature, partial(_emit, True, True)


def _add_without(typing: Any, g: Any, e: Any, share: Any, p: Any, sums: Any, at: Any, edge: Any) -> Any:
    """Do the same without a residual: ``p = g``, and p·p alone."""
    signature = types.uint64(g, e, types.float32, p, sums, types.int64, types.int32)
    return signature, partial(_emit, False, False)


add_with_residual: Any = intrinsic(_add_with_residual)
add_over: Any = intrinsic(_add_over)
add_without: Any = intrinsic(_add_without)


@jit(
    sift="int64(float32[n], float32[old], float32, float32[n], float32, float64[24], int32[most], int32[most], int64)"
)
def sift(
    g: NDArray[np.float32],
    e: NDArray[np.float32],
    share: np.float32,
    p: NDArray[np.float32],
    level: np.float32,
    sums: NDArray[np.float64],
    places: NDArray[np.int32],
    words: NDArray[np.int32],
    over: int,
) -> int:
    """Compute ``p = g + share·e`` with two roundings, and pick the elements of magnitude ``level`` or more.

    Args:
        g: The gradient.
        e: The residual; empty if there is none.
        share: Factor of the residual.
        p: Receives the sum.
        level: The lowest magnitude that is picked.
        sums: Shape ``(24,)``. p·p, g·g and e·g are added, in 8 lanes each; only p·p if ``e`` is empty.
        places: Receives the ascending places of the elements, as many as fit.
        words: Receives the elements.
        over: Whether ``e`` is ``p`` itself; see ``_add_over``.

    Returns:
        How many elements there are, whether or not they fit.
    """
    fit = np.uint64(places.size)
    near = room(np.float32, 1)
    near[0] = level
    bits, edge = p.view(np.int32), near.view(np.int32)[0]
    count: Any = np.uint64(0)
    whole = p.size & ~63
    for begin in range(0, whole + 1, 64):
        mask: Any = np.uint64(0)
        if begin < whole and over:
            mask = add_over(g, e, share, p, sums, begin, edge)
        elif begin < whole and e.size > 0:
            mask = add_with_residual(g, e, share, p, sums, begin, edge)
        elif begin < whole:
            mask = add_without(g, e, share, p, sums, begin, edge)
        else:  # the last elements singly, with the same roundings; their products go into the first lane
            for i in range(whole, p.size):
                old = np.float32(0.0)
                if e.size > 0:
                    old = e[i]
                    sums[8] += np.float64(g[i]) * np.float64(g[i])
                    sums[16] += np.float64(g[i]) * np.float64(old)
                value = g[i]
                if e.size > 0:
                    value = g[i] + share * old
                sums[0] += np.float64(value) * np.float64(value)
                if over and not abs(g[i]) < np.float32(np.inf):
                    value = np.float32(0.0) + share * old
                p[i] = value
                if bits[i] & _MAGNITUDE >= edge:
                    mask |= np.uint64(1) << np.uint64(i - whole)
        while mask != np.uint64(0):
            place = np.uint64(begin + lowest(mask))
            mask &= mask - np.uint64(1)
            if count < fit:
                places[count] = np.int32(place)
                words[count] = bits[place]
            count += np.uint64(1)
    return np.int64(count)  # type: ignore[return-value]


@jit(trim="int64(int32[m], int32[m], int32[k], int32[k], int32[n], int64)")
def trim(
    places: NDArray[np.int32],
    words: NDArray[np.int32],
    indices: NDArray[np.int32],
    values: NDArray[np.int32],
    bits: NDArray[np.int32],
    clear: int,
) -> int:
    """Select the ``indices.size`` largest of these candidates, in their order, and the first among equals.

    ``bits`` is the memory of the tensor, in which they become zero if ``clear``. Return 0, with nothing done, if there
    are too few candidates, or if they are those of another tensor: the room of candidates is shared.
    """
    # The magnitude of the last one is found digit by digit, of 11, 10 and 10 bits: counting is quicker than sorting.
    m, k = words.size, indices.size
    if not 0 < k <= m:
        return 0
    first, final = np.uint64(np.uint32(places[0])), np.uint64(np.uint32(places[m - 1]))
    if max(first, final) >= np.uint64(bits.size) or bits[first] != words[0] or bits[final] != words[m - 1]:
        return 0
    rank, prefix = np.int64(k), np.int32(0)
    counts = room(np.int64, 2048)
    for digit in range(3):
        shift = np.int32(20 - 10 * digit)
        low = np.int32(2047 if digit == 0 else 1023)
        for bin_ in range(2048):
            counts[bin_] = 0
        for j in range(m):
            size = words[np.uint64(j)] & _MAGNITUDE
            inside = digit == 0 or (size >> (shift + np.int32(10))) == prefix
            counts[np.uint64((size >> shift) & low)] += np.int64(inside)
        at = np.int64(low)
        while counts[at] < rank:
            rank -= counts[at]
            at -= 1
        prefix = np.int32((np.int64(prefix) << 10 if digit else 0) | at)
    count: Any = np.uint64(0)
    last = np.uint64(k - 1)
    for j in range(m):
        word = words[np.uint64(j)]
        equal = np.int64(word & _MAGNITUDE == prefix) & np.int64(rank > 0)
        rank -= equal
        at_ = min(count, last)  # written in any case: the processor would guess a branch wrong too often
        indices[at_] = places[np.uint64(j)]
        values[at_] = word
        count += np.uint64(np.int64(word & _MAGNITUDE > prefix) | equal)
        if count > last:
            break
    if clear:
        for j in range(k):
            bits[np.uint64(np.uint32(indices[np.uint64(j)]))] = 0
    return 1
