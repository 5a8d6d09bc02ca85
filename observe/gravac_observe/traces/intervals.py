"""Unions of time intervals: exposed time is a union less another one, never a sum."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence


class Union:
    """The union of intervals. Neither order nor overlap of what it is made of counts.

    Args:
        starts: Begins of the intervals.
        ends: Ends of the same intervals, in the same order.
    """

    def __init__(self, starts: Sequence[float] = (), ends: Sequence[float] = ()) -> None:
        self.starts, self.ends, self._before = array("d"), array("d"), array("d")
        total = end = 0.0
        for at in sorted(range(len(starts)), key=starts.__getitem__):
            if not self.ends or starts[at] > end:
                self._before.append(total)
                self.starts.append(starts[at])
                self.ends.append(ends[at])
                end = ends[at]
                total += end - starts[at]
            elif ends[at] > end:
                total += ends[at] - end
                self.ends[-1] = end = ends[at]
        self.length = total

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> "Union":
        """Return the union of pairs of start and end."""
        listed = list(pairs)
        return cls([start for start, _ in listed], [end for _, end in listed])

    def within(self, start: float, end: float) -> float:
        """Return how much of an interval the union covers."""
        return max(0.0, self._until(end) - self._until(start)) if end > start else 0.0

    def holds(self, moment: float) -> bool:
        """Return whether the union covers a moment."""
        at = bisect_right(self.starts, moment) - 1
        return at >= 0 and moment <= self.ends[at]

    def _until(self, moment: float) -> float:
        """Return the length of the union up to a moment."""
        at = bisect_right(self.starts, moment) - 1
        return 0.0 if at < 0 else self._before[at] + min(moment, self.ends[at]) - self.starts[at]


def waits(busy: Union, ends: Sequence[float], late: float = 0.0) -> Union:
    """Return the pauses of ``busy`` up to the last of ``ends`` within each.

    A thread that goes on while a transfer still runs does not wait for it; one that goes on after a transfer ended may
    have waited until then. A transfer may seem to end up to ``late`` after it woke the thread.
    """
    ordered = sorted(ends)
    pauses = []
    for start, end in zip((float("-inf"), *busy.ends), (*busy.starts, float("inf")), strict=True):
        at = bisect_right(ordered, end + late) - 1
        if at >= 0 and ordered[at] > start:
            pauses.append((start, min(end, ordered[at])))
    return Union.of(pauses)


def less(whole: Union, out: Union) -> Union:
    """Return a union without another one."""
    pairs, at = [], 0
    for start, end in zip(whole.starts, whole.ends, strict=True):
        while at < len(out.starts) and out.ends[at] <= start:
            at += 1
        place = at
        while place < len(out.starts) and out.starts[place] < end:
            pairs.append((start, out.starts[place]))
            start = out.ends[place]
            place += 1
        pairs.append((start, end))
    return Union.of(pair for pair in pairs if pair[1] > pair[0])
