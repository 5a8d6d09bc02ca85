"""Sparse vectors added to dense ones, and inner products with them."""

import numpy as np
from numpy.typing import NDArray

from gravac.kernels.cpu.build import jit


@jit(scatter_add="int64(float32[n], int32[k], float32[k], float32)")
def scatter_add(
    out: NDArray[np.float32], indices: NDArray[np.int32], values: NDArray[np.float32], scale: np.float32
) -> int:
    """Add ``out[indices] += scale·values``, in order. Return 0, with nothing done, if an index is outside."""
    # Before anything is added, because a part of a payload could not be distinguished from the rest and taken back.
    highest = np.uint32(0)
    for i in range(indices.size):
        highest = max(highest, np.uint32(indices[i]))  # a negative one becomes a large one
    if indices.size > 0 and highest >= out.size:
        return 0
    for i in range(indices.size):
        out[np.uint64(np.uint32(indices[i]))] += values[i] * scale
    return 1


@jit(inner_at="float64(float32[n], int32[k], float32[k])")
def inner_at(x: NDArray[np.float32], indices: NDArray[np.int32], values: NDArray[np.float32]) -> float:
    """Return the sum of ``values · x[indices]``; NaN if an index is outside."""
    total = 0.0
    for i in range(indices.size):
        place = np.uint64(np.uint32(indices[i]))
        if place >= np.uint64(x.size):
            return np.nan
        total += np.float64(values[i]) * np.float64(x[place])
    return total
