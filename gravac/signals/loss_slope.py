"""Loss slope: how fast the training loss of a job falls with its steps, as the exponent of a power law. Pure.

Late in training, the loss is close to c · step^-s. A plan that makes η steps of progress per step is then behind by as
much as if 1 - η of its steps were missing: at equal steps, its loss is about s · (1/η - 1) higher.
"""

import math
from typing import Annotated

from pydantic import Field

from gravac.protocol import Count, Record

BINS = 20
"""Bins that a tracker has at most, with three numbers each. [bins; chosen]"""
LEAST_WINDOWS = 4
"""Windows with a loss from which a slope is given. [windows; chosen]"""
MIDDLE, LATE = (0.45, 0.60), (0.85, 1.00)
"""The two parts of training that are compared, as shares of the steps so far. [share; chosen]"""


class LossBins(Record):
    """The state of a ``LossSlope``."""

    windows: Count  # with a loss
    end: Count  # steps up to the last loss
    width: Annotated[int, Field(ge=1, le=2**53)]  # of a bin, in steps
    bins: Annotated[
        tuple[tuple[float, float, float], ...], Field(max_length=BINS)
    ]  # steps, middle, mean loss


class LossSlope:
    """The slope ``-d ln(loss) / d ln(step)`` of a job, from the losses that its windows logged.

    It compares the mean loss of the middle with that of the end of all steps so far (``MIDDLE``, ``LATE``). The losses
    are kept as means over at most ``BINS`` bins of equal width. Once training is longer than the bins, pairs of bins
    are merged.

    Args:
        bins: losses to continue with; None: none.
    """

    def __init__(self, bins: LossBins | None = None) -> None:
        self._windows = 0 if bins is None else bins.windows
        self._end = 0 if bins is None else bins.end
        self._width = 1 if bins is None else bins.width
        self._bins: list[tuple[float, float, float]] = [] if bins is None else list(bins.bins)

    @property
    def bins(self) -> LossBins:
        """Return the state, to continue with later."""
        return LossBins(windows=self._windows, end=self._end, width=self._width, bins=tuple(self._bins))

    def add(self, last_step: int, steps: int, loss: float) -> None:
        """Add a window.

        Args:
            last_step: Last step of the window, from 0 over the whole job.
            steps: in the window, at least 1.
            loss: mean of those logged in the window, finite.
        """
        end = last_step + 1
        self._windows += 1
        self._end = max(self._end, end)
        while self._end > BINS * self._width:
            self._width *= 2
            kept = self._bins + [(0.0, 0.0, 0.0)] * (len(self._bins) % 2)
            self._bins = [_merged(a, b) for a, b in zip(kept[::2], kept[1::2], strict=True)]
        first, middle = end - steps, end - steps / 2
        last_bin = last_step // self._width
        self._bins += [(0.0, 0.0, 0.0)] * (last_bin + 1 - len(self._bins))
        for at in range(first // self._width, last_bin + 1):
            inside = min(end, (at + 1) * self._width) - max(first, at * self._width)
            self._bins[at] = _merged(self._bins[at], (float(inside), middle, loss))

    def slope(self) -> float | None:
        """Return the slope, at least 0: 0.1 where the loss falls by 7 % while the steps double.

        Returns:
            None before ``LEAST_WINDOWS`` windows with a loss, where the middle or the end of training has none, and
            where a loss is not above 0: a power law does not describe it.
        """
        if self._windows < LEAST_WINDOWS or any(steps > 0 and loss <= 0 for steps, _, loss in self._bins):
            return None
        (known, middle, before), (also, late, now) = self._mean(*MIDDLE), self._mean(*LATE)
        if not known or not also or not 0 < middle < late:
            return None
        return max(0.0, (math.log(before) - math.log(now)) / math.log(late / middle))

    def _mean(self, first: float, last: float) -> tuple[float, float, float]:
        """Return steps, mean step and mean loss between two shares of the steps so far; no steps: not known."""
        found = (0.0, 0.0, 0.0)
        for at, (steps, middle, loss) in enumerate(self._bins):
            begin, end = at * self._width, min((at + 1) * self._width, self._end)
            inside = min(end, last * self._end) - max(begin, first * self._end)
            if inside > 0 and steps > 0:
                found = _merged(found, (steps * inside / (end - begin), middle, loss))
        return found


def _merged(a: tuple[float, float, float], b: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return two bins as one: sum of steps, and means weighted by them."""
    steps = a[0] + b[0]
    if a[0] == 0.0 or b[0] == 0.0:
        return b if a[0] == 0.0 else a
    share = b[0] / steps
    return steps, a[1] + share * (b[1] - a[1]), a[2] + share * (b[2] - a[2])
