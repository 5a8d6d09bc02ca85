"""A step of Adam in which only some elements of the gradient arrived."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit, lowest, room
from gravac.kernels.reference import FINE, HALF_STEP, OLDEST, STEP, TO_STEPS

_STEP, _REST = np.int16(STEP), np.int16(OLDEST - STEP)
"""Age of one step, and the most that can grow by it."""
_STEP_32, _MOST = np.int32(STEP), np.float32(OLDEST - STEP)
_FINE, _NEAREST, _TO_STEPS = np.int32(FINE), np.int32(HALF_STEP - FINE), np.int32(TO_STEPS)
_SHARE_OF_A_STEP = np.float32(1 / STEP)
_PIECE = 128
"""Elements whose numbers stay in the first-level cache between the loops."""
_AHEAD = np.uint64(512)
"""Elements. The numbers so far ahead are called to the second-level cache: the loops are too short for the processor
to do so by itself."""
_ONE, _ALL = np.uint64(1), ~np.uint64(0)
_I32 = ir.IntType(32)


def _at(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.gep(context.make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])


def _set_of(typing: Any, numbers: Any, at: Any) -> Any:
    """Return a bit for each of the 64 elements from ``at``: whether it is not zero, bytes or float32."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole = numbers.dtype == types.uint8
        kind = ir.VectorType(ir.IntType(8) if whole else ir.FloatType(), 64)
        place = builder.bitcast(_at(context, builder, signature, args), kind.as_pointer())
        found, none = builder.load(place, align=1), ir.Constant(kind, [0] * 64)
        compare = builder.icmp_unsigned if whole else builder.fcmp_unordered  # which NaN passes
        return builder.bitcast(compare("!=", found, none), ir.IntType(64))

    return types.uint64(numbers, types.uint64), emit


def _soon(typing: Any, x: Any, at: Any) -> Any:
    """Call what is there to the second-level cache. It may be beyond the array."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.bitcast(_at(context, builder, signature, args), ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [place.type, _I32, _I32, _I32])
        call = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        builder.call(call, [place, *(ir.Constant(_I32, flag) for flag in (0, 2, 1))])
        return context.get_dummy_value()

    return types.void(x, types.uint64), emit


set_of: Any = intrinsic(_set_of)
soon: Any = intrinsic(_soon)


@jit(
    step_aged="void(float32[n], float32[n], float32[n], float32[n], int16[n], uint8[some], float32[cells], float32[5], "
    "float32, float32, float32, int64)"
)
def step_aged(
    p: NDArray[np.float32],
    g: NDArray[np.float32],
    m: NDArray[np.float32],
    v: NDArray[np.float32],
    age: NDArray[np.int16],
    senders: NDArray[np.uint8],
    table: NDArray[np.float32],
    rates: NDArray[np.float32],
    beta1: np.float32,
    share: np.float32,
    growth: np.float32,
    nonzero: int,
) -> None:
    """Do what ``gravac.kernels.step_aged`` does. One rank sent everything if ``senders`` is empty."""
    rate, eps, decay, l2 = rates[0], rates[1], rates[2], rates[3]
    skips, grows = rates[4] != np.float32(0.0), growth != np.float32(1.0)
    if skips and not grows:
        return
    rows = table.view(np.int64)  # both numbers of a row at once
    half = np.uint64(rows.size // 2)
    param, first, waits = room(np.float32, _PIECE), room(np.float32, _PIECE), room(np.int16, _PIECE)
    # Of those that arrived, one after another, so that their step is vector code too.
    places, rest = room(np.uint32, _PIECE), room(np.int16, _PIECE)
    xs, us = room(np.float32, _PIECE), room(np.float32, _PIECE)
    ms, vs = room(np.float32, _PIECE), room(np.float32, _PIECE)
    late, row = room(np.int64, _PIECE), room(np.int64, _PIECE)
    lates, rowed = late.view(np.float32), row.view(np.float32)
    for begin in range(0, p.size, _PIECE):
        base, size = np.uint64(begin), min(_PIECE, p.size - begin)
        if grows:
            for j in range(size):
                at = base + np.uint64(j)
                older = np.float32(np.int32(age[at]) - _STEP_32) * growth + np.float32(0.5)
                age[at] = np.int16(np.int32(min(older, _MOST)) + _STEP_32)
        if skips:
            continue
        ahead = base + _AHEAD
        for j in range(0, _PIECE, 16):  # as many as a cache line holds
            at = ahead + np.uint64(j)
            soon(p, at)
            soon(g, at)
            soon(m, at)
            soon(v, at)
        for j in range(0, _PIECE, 32):
            soon(age, ahead + np.uint64(j))
        for j in range(0, _PIECE, 64):
            soon(senders, ahead + np.uint64(j))
        # All as if they had not arrived, in vector code.
        for j in range(size):
            i, at = np.uint64(j), base + np.uint64(j)
            kept = m[at] * beta1
            param[i], first[i] = p[at], kept
            p[at] = p[at] * decay - kept * rate / (np.sqrt(v[at]) + eps)
            m[at] = kept
        for j in range(size):
            i, at = np.uint64(j), base + np.uint64(j)
            waits[i] = age[at]
            age[at] = min(age[at], _REST) + _STEP
        count: Any = np.uint64(0)
        for begun in range(0, size, 64):
            start, left = base + np.uint64(begun), size - begun
            mask = _ALL if left >= 64 else (_ONE << np.uint64(left)) - _ONE
            if nonzero:
                if left >= 64:
                    mask = set_of(g, start)
                else:
                    for j in range(left):
                        mask ^= np.uint64(g[start + np.uint64(j)] == np.float32(0.0)) << np.uint64(j)
            elif senders.size != 0:
                if left >= 64:
                    mask = set_of(senders, start)
                else:
                    for j in range(left):
                        mask ^= np.uint64(senders[start + np.uint64(j)] == np.uint8(0)) << np.uint64(j)
            while mask != np.uint64(0):
                place = np.uint64(begun + lowest(mask))
                mask &= mask - _ONE
                at = base + place
                part = share
                if senders.size != 0:
                    sent = senders[at]
                    part = np.float32(1.0) if sent == np.uint8(0) else np.float32(sent) * share
                wait = np.int32(waits[place])
                a = np.int32(np.float32(wait) * part + np.float32(0.5))
                places[count], rest[count] = np.uint32(place), np.int16(wait - a)
                late[count] = rows[np.uint64(min(wait, _FINE + ((wait + _NEAREST) >> _TO_STEPS)))]
                row[count] = rows[half + np.uint64(min(a, _FINE + ((a + _NEAREST) >> _TO_STEPS)))]
                x = param[place]
                xs[count], us[count] = x, g[at] + np.float32(a) * _SHARE_OF_A_STEP * l2 * x
                ms[count], vs[count] = first[place], v[at]
                count += _ONE
        for j in range(count):
            i = np.uint64(j)
            even, odd = i + i, i + i + _ONE
            u, kept = us[i], ms[i]
            way = kept + u * lates[odd]
            second = vs[i] * rowed[even] + u * rowed[odd] * u
            ms[i], vs[i] = kept + u * lates[even], second
            xs[i] = xs[i] * decay - way * rate / (np.sqrt(second) + eps)
        for j in range(count):
            i = np.uint64(j)
            at = base + np.uint64(places[i])
            p[at], m[at], v[at] = xs[i], ms[i], vs[i]
            age[at] = min(rest[i], _REST) + _STEP
