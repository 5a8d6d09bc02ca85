"""The k largest magnitudes of a tensor whose histogram is known, in one pass over it."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit, lowest, room

_MAGNITUDE = np.int32(0x7FFFFFFF)
_OPEN = 19
"""Lower bits of a magnitude that its bin leaves open. They are counted in two digits, the first of nine bits."""
_LOW = 10
"""Bits of the second digit."""
_NEAR = np.int64(4 << 23)
"""Distance below the largest magnitude at which a chunk's edge is looked for first: a factor of 16."""
_FIRSTS, _SECONDS = 1 << (_OPEN - _LOW), 1 << _LOW
_FIRST, _SECOND = np.int32(_FIRSTS - 1), np.int32(_SECONDS - 1)


def _at_least(typing: Any, bits: Any, at: Any, edge: Any) -> Any:
    """Return a bit for each of the 64 elements from ``at``: whether its magnitude is at least ``edge``."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32, i64 = ir.IntType(32), ir.IntType(64)
        vector = ir.VectorType(i32, 64)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        place = builder.bitcast(builder.gep(data, [args[1]]), vector.as_pointer())
        size = builder.and_(builder.load(place, align=4), ir.Constant(vector, [0x7FFFFFFF] * 64))
        nothing = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(nothing, args[2], ir.Constant(i32, 0))
        edges = builder.shuffle_vector(first, nothing, ir.Constant(vector, [0] * 64))
        return builder.bitcast(builder.icmp_signed(">=", size, edges), i64)

    return types.uint64(bits, types.int64, types.int32), emit


def _ones(typing: Any, word: Any) -> Any:
    """Return how many bits are set."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), emit


at_least: Any = intrinsic(_at_least)
ones: Any = intrinsic(_ones)


@jit("void(int32[::1], int32[::1], int32[::1], int64)")
def put_back(
    bits: NDArray[np.int32], places: NDArray[np.int32], words: NDArray[np.int32], count: Any
) -> None:
    """Restore ``bits[places] = words`` for the first ``count``."""
    for j in range(count):
        bits[places[j]] = words[j]


@jit(top="int64(int32[n], int64, int32, int64, int32[k], int32[k], int32[more], int32[more])")
def top(
    bits: NDArray[np.int32],
    above: int,
    edge: int,
    clear: int,
    indices: NDArray[np.int32],
    values: NDArray[np.int32],
    more_indices: NDArray[np.int32],
    more_values: NDArray[np.int32],
) -> int:
    """Select the ``indices.size`` largest magnitudes of the floats in ``bits``, in one pass.

    Args:
        bits: The floats' memory.
        above: How many magnitudes lie in higher bins than that of the last one that is selected.
        edge: The lowest magnitude of that bin.
        clear: Whether to leave zeros behind.
        indices: Receives the ascending positions.
        values: Receives the floats.
        more_indices: Room for candidates beyond those: as many as lie in that bin or above, less ``indices.size``.
        more_values: The same.

    Returns:
        0, with ``bits`` as it was, if these numbers are those of another tensor.
    """
    # The pass collects all from ``edge`` on, and counts the first digit of those in the last bin. A second digit is
    # counted among the few with that first one. Together they give the exact magnitude of the last one selected.
    n, k, upper = bits.size, indices.size, np.int64(edge) + (1 << _OPEN)
    spare = more_indices.size
    firsts, seconds = room(np.int64, _FIRSTS), room(np.int64, _SECONDS)
    for digit in range(_FIRSTS):
        firsts[digit] = 0
    for digit in range(_SECONDS):
        seconds[digit] = 0
    count: Any = np.uint64(0)
    near = np.int64(0)
    whole = n & ~63
    for begin in range(0, whole + 1, 64):
        if begin < whole:
            mask: Any = at_least(bits, begin, edge)
        else:
            mask = np.uint64(0)
            for i in range(whole, n):
                if bits[i] & _MAGNITUDE >= edge:
                    mask |= np.uint64(1) << np.uint64(i - whole)
        while mask != np.uint64(0):
            place = np.uint64(begin + lowest(mask))
            mask &= mask - np.uint64(1)
            word = bits[place]
            if count < np.uint64(k):
                indices[count] = np.int32(place)
                values[count] = word
            elif count < np.uint64(k + spare):
                more_indices[count - np.uint64(k)] = np.int32(place)
                more_values[count - np.uint64(k)] = word
            else:
                put_back(bits, indices, values, k if clear else 0)
                put_back(bits, more_indices, more_values, spare if clear else 0)
                return 0
            count += np.uint64(1)
            inside = np.int64(np.int64(word & _MAGNITUDE) < upper)
            near += inside
            firsts[np.uint64((word >> _LOW) & _FIRST)] += inside
            if clear:  # while the line is near; the few that are not chosen are put back below
                bits[place] = 0
    found: Any = np.int64(count)
    rank = k - above
    if found - near != above or not 0 < rank <= near:
        put_back(bits, indices, values, min(found, k) if clear else 0)
        put_back(bits, more_indices, more_values, max(found - k, 0) if clear else 0)
        return 0
    first = np.int64(_FIRST)
    while firsts[first] < rank:
        rank -= firsts[first]
        first -= 1
    prefix = (np.int64(edge) >> _LOW) | first
    for j in range(found):
        word = values[np.uint64(j)] if j < k else more_values[np.uint64(j - k)]
        if np.int64(word & _MAGNITUDE) >> _LOW == prefix:
            seconds[np.uint64(word & _SECOND)] += 1
    second = np.int64(_SECOND)
    while seconds[second] < rank:
        rank -= seconds[second]
        second -= 1
    threshold = (prefix << _LOW) | second
    taken = np.uint64(0)
    for j in range(found):
        word = values[np.uint64(j)] if j < k else more_values[np.uint64(j - k)]
        position = indices[np.uint64(j)] if j < k else more_indices[np.uint64(j - k)]
        size = np.int64(word & _MAGNITUDE)
        take: Any = size > threshold
        if size == threshold and rank > 0:  # among equals, the first ones
            rank -= 1
            take = True
        if take:
            indices[taken] = position
            values[taken] = word
            taken += np.uint64(1)
        elif clear:
            bits[np.uint64(np.uint32(position))] = word
    return 1


@jit(take_above="void(int32[n], int32, int32[k], int32[k])")
def take_above(
    bits: NDArray[np.int32], edge: int, indices: NDArray[np.int32], values: NDArray[np.int32]
) -> None:
    """Write the ascending positions and the values of these elements, for which there is exactly enough room."""
    count: Any = np.uint64(0)
    whole = bits.size & ~63
    for begin in range(0, whole, 64):
        mask: Any = at_least(bits, begin, edge)
        while mask != np.uint64(0):
            place = np.uint64(begin + lowest(mask))
            mask &= mask - np.uint64(1)
            indices[count] = np.int32(place)
            values[count] = bits[place]
            count += np.uint64(1)
    for i in range(whole, bits.size):
        if bits[i] & _MAGNITUDE >= edge:
            indices[count] = np.int32(i)
            values[count] = bits[i]
            count += np.uint64(1)


@jit(count_from="int64(int32[n], int64, int64, int32)")
def count_from(bits: NDArray[np.int32], begin: int, end: int, edge: np.int32) -> np.int64:
    """Return how many magnitudes of ``bits[begin:end]`` are at least ``edge``."""
    count: Any = np.int64(0)
    at = np.int64(begin)
    while at + 64 <= end:
        count += ones(at_least(bits, at, edge))
        at += 64
    for i in range(at, end):
        count += bits[np.uint64(i)] & _MAGNITUDE >= edge
    return count  # type: ignore[no-any-return]


@jit(top_of_chunks="void(int32[n], int64, int32[k], int32[k])")
def top_of_chunks(
    bits: NDArray[np.int32], chunks: int, indices: NDArray[np.int32], values: NDArray[np.int32]
) -> None:
    """Write the ascending positions and the values of each chunk's largest magnitudes.

    Chunk i of m is ``[i·n // m, (i + 1)·n // m)``. Of k in all, ``(i + 1)·k // m - i·k // m`` are its own, 1 or more.
    """
    n, k = bits.size, indices.size
    taken = np.uint64(0)
    for chunk in range(chunks):
        begin, end = chunk * n // chunks, (chunk + 1) * n // chunks
        keep = (chunk + 1) * k // chunks - chunk * k // chunks
        largest = np.int32(0)
        for i in range(begin, end):
            largest = max(largest, np.int32(bits[np.uint64(i)] & _MAGNITUDE))
        # The edge lies in [low, high): at least ``keep`` magnitudes reach ``low``, and only ``above`` reach ``high``.
        low, high, above = np.int64(0), np.int64(largest) + 1, np.int64(0)
        # Bisecting the bits of floats is about bisecting their logarithms, so it takes few steps whatever their scale.
        probe = max(np.int64(largest) - _NEAR, np.int64(0))
        while high - low > 1:
            found = count_from(bits, begin, end, np.int32(probe))
            if found >= keep:
                low = probe
                if found == keep:
                    break
            else:
                high, above = probe, found
            probe = low + (high - low) // 2
        # With the loop left early, all from ``low`` on are taken; else the first ones of those equal to it.
        equals = keep - above
        for at in range(begin, end, 64):
            if at + 64 <= end:
                mask: Any = at_least(bits, at, np.int32(low))
            else:
                mask = np.uint64(0)
                for i in range(at, end):
                    if bits[np.uint64(i)] & _MAGNITUDE >= low:
                        mask |= np.uint64(1) << np.uint64(i - at)
            while mask != np.uint64(0):
                place = np.uint64(at + lowest(mask))
                mask &= mask - np.uint64(1)
                word = bits[place]
                if np.int64(word & _MAGNITUDE) == low:
                    equals -= 1
                    if equals < 0:
                        continue
                indices[taken] = np.int32(place)
                values[taken] = word
                taken += np.uint64(1)
