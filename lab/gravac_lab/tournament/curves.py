"""Loss curves, and what two of them say about each other: statistical efficiency and retained value. Pure.

Held-out losses are noisy and may rise, so a level counts as reached once the lowest loss so far is at most that level.
Between two points of a curve the lowest loss is interpolated in a straight line.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median

FIRST_LEVEL = 0.4
"""Levels are read off the curve of dense from this share of its steps on: early ones are passed in a few steps."""
TARGET = 0.95
"""Share of the steps of dense after which its loss is the target of a time to target. Where the learning rate falls to
its end, a plan that loses a little never gets there in as many steps; a smaller share then tells more."""


@dataclass(frozen=True, slots=True)
class LossCurve:
    """A held-out loss by steps done, or by seconds.

    Attributes:
        at: steps or seconds of each point, ascending.
        losses: held-out loss of each point.

    Raises:
        ValueError: there is no point, or the points are not ascending.
    """

    at: tuple[float, ...]
    losses: tuple[float, ...]
    _lowest: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.at or len(self.at) != len(self.losses):
            raise ValueError(
                f"a curve needs points: got {len(self.at)} places and {len(self.losses)} losses; give as many of both, "
                "at least 1"
            )
        if any(one >= other for one, other in zip(self.at, self.at[1:], strict=False)):
            raise ValueError(f"at={self.at} must ascend: give each point once, in order")
        object.__setattr__(self, "_lowest", tuple(accumulate(self.losses, min)))

    @property
    def final(self) -> float:
        """Loss of the last point."""
        return self.losses[-1]

    def lowest(self, at: float) -> float:
        """Return the lowest loss up to a place; before the first point that of the first."""
        if at <= self.at[0]:
            return self._lowest[0]
        for place in range(1, len(self.at)):
            if at <= self.at[place]:
                share = (at - self.at[place - 1]) / (self.at[place] - self.at[place - 1])
                return self._lowest[place - 1] + share * (self._lowest[place] - self._lowest[place - 1])
        return self._lowest[-1]

    def reaches(self, level: float) -> float | None:
        """Return the steps or seconds to a level, at least those of the first point; None if it is never reached."""
        if self._lowest[0] <= level:
            return self.at[0]
        for place in range(1, len(self.at)):
            before, here = self._lowest[place - 1], self._lowest[place]
            if here <= level:
                share = (before - level) / (before - here)
                return self.at[place - 1] + share * (self.at[place] - self.at[place - 1])
        return None


def levels(dense: LossCurve) -> list[float]:
    """Return the levels at which efficiency is read: the lowest losses of dense from ``FIRST_LEVEL`` on, each once."""
    late = [at for at in dense.at if at >= FIRST_LEVEL * dense.at[-1]]
    return list(dict.fromkeys(dense.lowest(at) for at in late))


def efficiency(dense: LossCurve, plan: LossCurve) -> float | None:
    """Return η: steps that dense needs / steps that the plan needs, the median over the levels that the plan reaches.

    None where it reaches no level. Noise makes some values exceed 1.
    """
    ratios = []
    for level in levels(dense):
        ours, theirs = plan.reaches(level), dense.reaches(level)
        if ours is not None and theirs is not None:
            ratios.append(theirs / ours)
    return median(ratios) if ratios else None


def retained_value(alone: float, dense: float, plan: float) -> float | None:
    """Return the share of what communication is worth that a plan keeps.

    That is (loss alone − loss of the plan) / (loss alone − loss dense), of final losses. None where communication is
    worth nothing, as alone is as good as dense.
    """
    return (alone - plan) / (alone - dense) if alone > dense else None


def target_level(dense: LossCurve, share: float = TARGET) -> float:
    """Return the target of a time to target: the lowest loss of dense after a share of its steps."""
    return dense.lowest(share * dense.at[-1])


def seconds_to(level: float, curve: LossCurve, step_seconds: float) -> float | None:
    """Return the seconds to a level where every step takes as long: what a plan does to learning knows no link.

    Args:
        level: held-out loss.
        curve: by steps.
        step_seconds: duration of a step on the link.
    """
    steps = curve.reaches(level)
    return None if steps is None else steps * step_seconds


def curve_of(points: Sequence[Sequence[float]], at: int = 0, loss: int = 1) -> LossCurve:
    """Return the curve of points as rows have them, by the columns of place and loss."""
    return LossCurve(tuple(point[at] for point in points), tuple(point[loss] for point in points))
