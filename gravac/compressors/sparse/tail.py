"""The k-th largest magnitude of a whole model, read off histograms, which add over buckets and ranks."""

import math
import struct
from collections.abc import Sequence

from torch import Tensor

from gravac.kernels.histogram import count

_SHIFT = 20
"""Bits of a float32 below those that say its bin: 8 bins an octave."""
_FINITE = 0x7F800000 >> _SHIFT
"""Bins of finite magnitudes."""
REACH = 8
"""Bins on each side of a known level that a window covers: an octave."""


def histogram(x: Tensor) -> Tensor:
    """Elements of ``x`` (finite, shape ``(n,)``) by bin of their magnitude, ascending; int64 of shape ``(2048,)``."""
    return count(x.detach().float().contiguous()).view(-1, 2).sum(1)


def level_of(counts: Tensor, k: int) -> float:
    """About the ``k``-th largest magnitude of those counted."""
    return _level(counts.tolist(), 0, 0.0, k)


def window(counts: Tensor, about: float) -> list[float]:
    """Elements above all bins near ``about``, then those in each of these bins, ascending: 1 + 2 · REACH numbers."""
    first = _first(about)
    near = counts[first : first + 2 * REACH]
    return [float(counts[first + 2 * REACH :].sum()), *map(float, near.tolist())]


def level_in(window: Sequence[float], about: float, k: int) -> float:
    """``level_of`` by a window (or a sum or mean of several) about the same level; at most its upper end, at least its
    lower one."""
    return _level(window[1:], _first(about), window[0], k)


def _level(counts: Sequence[float], first: int, above: float, k: int) -> float:
    if above >= k:
        return _edge(first + len(counts))
    for number in range(len(counts) - 1, -1 if first else 0, -1):  # the lowest bin of all is taken for zeros
        if above + counts[number] >= k:
            low, high = _edge(first + number), _edge(first + number + 1)
            share = (k - above) / counts[number]
            if above > 0.0:  # a tail falls about exponentially, and so inside a bin
                share = math.log(k / above) / math.log1p(counts[number] / above)
            return high - (high - low) * share
        above += counts[number]
    return _edge(first)  # 0 if that is the lowest of all


def _first(about: float) -> int:
    """The lowest bin of the window about a level."""
    bits: int = struct.unpack("<I", struct.pack("<f", about))[0]
    return min(max(0, (bits >> _SHIFT) - REACH), _FINITE - 2 * REACH)


def _edge(number: int) -> float:
    """The lowest magnitude of a bin; of the first that is not finite, the largest that is."""
    bits = min(number << _SHIFT, (_FINITE << _SHIFT) - 1)
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    return float(value)
