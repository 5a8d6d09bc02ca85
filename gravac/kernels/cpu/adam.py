"""A step of Adam in which only some elements of the gradient arrived."""

import numpy as np
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit, room
from gravac.kernels.reference import OLDEST, STEP

_COLUMNS = np.uint64(2)
"""Of each of the two halves of the table."""
_STEP, _REST = np.int16(STEP), np.int16(OLDEST - STEP)
"""Age of one step, and the most that can grow by it."""
_SHARE_OF_A_STEP = np.float32(1 / STEP)
_PIECE = 512
"""Elements whose numbers stay in the first-level cache between the loops."""


@jit(
    step_aged="void(float32[n], float32[n], float32[n], float32[n], int16[n], uint8[some], float32[cells], float32[5], "
    "float32, float32)"
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
) -> None:
    """Do what ``gravac.kernels.step_aged`` does. One rank sent everything if ``senders`` is empty."""
    rate, eps, decay, l2 = rates[0], rates[1], rates[2], rates[3]
    if rates[4] != np.float32(0.0):
        return
    last = np.int32(table.size // 4 - 1)
    half = np.uint64(table.size // 2)
    places = room(np.uint32, _PIECE)
    param, first, grad = room(np.float32, _PIECE), room(np.float32, _PIECE), room(np.float32, _PIECE)
    for begin in range(0, p.size, _PIECE):
        base, size = np.uint64(begin), min(_PIECE, p.size - begin)
        # The places of what arrived first: a branch on each element would mostly be mispredicted.
        count = np.uint64(0)
        if senders.size == 0:
            for i in range(size):
                places[np.uint64(i)] = np.uint32(i)
            count = np.uint64(size)
        else:
            for i in range(size):
                places[count] = np.uint32(i)
                count += np.uint64(senders[base + np.uint64(i)] != np.uint8(0))
        # All as if they had not arrived, in vector code. It brings the numbers near that those which did begin with.
        for i in range(size):
            at = base + np.uint64(i)
            kept = m[at] * beta1
            param[np.uint64(i)], first[np.uint64(i)], grad[np.uint64(i)] = p[at], kept, g[at]
            p[at] = p[at] * decay - kept * rate / (np.sqrt(v[at]) + eps)
            m[at] = kept
        for i in range(count):
            place = np.uint64(places[np.uint64(i)])
            at = base + place
            part = share
            if senders.size != 0:
                part = np.float32(senders[at]) * share
            wait = np.int32(age[at])
            a = np.int32(np.float32(wait) * part + np.float32(0.5))
            row, late = half + _COLUMNS * np.uint64(min(a, last)), _COLUMNS * np.uint64(min(wait, last))
            x, kept = param[place], first[place]
            u = grad[place] + np.float32(min(a, last)) * _SHARE_OF_A_STEP * l2 * x
            way = kept + u * table[late + np.uint64(1)]
            second = v[at] * table[row] + u * table[row + np.uint64(1)] * u
            m[at] = kept + u * table[late]
            v[at] = second
            p[at] = x * decay - way * rate / (np.sqrt(second) + eps)
            age[at] = np.int16(wait - a)
        for i in range(size):
            at = base + np.uint64(i)
            age[at] = min(age[at], _REST) + _STEP
