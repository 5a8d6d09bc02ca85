"""A step of Adam in which only some elements of the gradient arrived."""

import numpy as np
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit, room

_COLUMNS = np.uint64(7)
"""Of the table."""
_PIECE = 512
"""Elements whose numbers stay in the first-level cache between the loops."""


@jit(
    step_aged="void(float32[n], float32[n], float32[n], float32[n], int8[n], uint8[some], float32[cells], float32[5])"
)
def step_aged(
    p: NDArray[np.float32],
    g: NDArray[np.float32],
    m: NDArray[np.float32],
    v: NDArray[np.float32],
    age: NDArray[np.int8],
    arrived: NDArray[np.uint8],
    table: NDArray[np.float32],
    rates: NDArray[np.float32],
) -> None:
    """Do what ``gravac.kernels.step_aged`` does. Everything arrived if ``arrived`` is empty."""
    rate, eps, decay, l2 = rates[0], rates[1], rates[2], rates[3]
    if rates[4] != np.float32(0.0):
        return
    keep, from_m = table[0], table[4]
    oldest = np.int8(table.size // 7 - 1)
    places = room(np.uint32, _PIECE)
    param, first, grad = room(np.float32, _PIECE), room(np.float32, _PIECE), room(np.float32, _PIECE)
    for begin in range(0, p.size, _PIECE):
        base, size = np.uint64(begin), min(_PIECE, p.size - begin)
        # The places of what arrived first: a branch on each element would mostly be mispredicted.
        count = np.uint64(0)
        if arrived.size == 0:
            for i in range(size):
                places[np.uint64(i)] = np.uint32(i)
            count = np.uint64(size)
        else:
            for i in range(size):
                places[count] = np.uint32(i)
                count += np.uint64(arrived[base + np.uint64(i)])
        # All as if they had not arrived, in vector code. It brings the numbers near that those which did begin with.
        for i in range(size):
            at = base + np.uint64(i)
            param[np.uint64(i)], first[np.uint64(i)], grad[np.uint64(i)] = p[at], m[at], g[at]
            p[at] = p[at] * decay - m[at] * from_m * rate / (np.sqrt(v[at]) + eps)
            m[at] *= keep
        for i in range(count):
            place = np.uint64(places[np.uint64(i)])
            at = base + place
            row = _COLUMNS * np.uint64(age[at])
            x, was = param[place], first[place]
            u = grad[place] + table[row + np.uint64(6)] * l2 * x
            way = was * table[row + np.uint64(4)] + u * table[row + np.uint64(5)]
            second = v[at] * table[row + np.uint64(2)] + u * table[row + np.uint64(3)] * u
            m[at] = was * table[row] + u * table[row + np.uint64(1)]
            v[at] = second
            p[at] = x * decay - way * rate / (np.sqrt(second) + eps)
            age[at] = np.int8(0)
        for i in range(size):
            at = base + np.uint64(i)
            age[at] = min(np.int8(age[at] + np.int8(1)), oldest)
