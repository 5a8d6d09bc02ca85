"""How often something may be asked: a bucket that fills steadily and pays for bursts."""

from collections import OrderedDict
from collections.abc import Callable

BURST_SECONDS = 10.0
"""A bucket holds what comes in in this time, so rates are averages over about that long."""
MOST_KEYS = 4096
"""Buckets remembered; the one not asked for longest is forgotten, which only means that it is full again."""


class Rates:
    """A bucket for each key, filled with ``per_second``."""

    def __init__(self, per_second: float, now: Callable[[], float]) -> None:
        self._per_second, self._now = per_second, now
        self._most = max(1.0, per_second * BURST_SECONDS)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key: content, and when

    def take(self, key: str) -> float:
        """Take one from the key's bucket: 0 when there was one, else the seconds until there is."""
        now = self._now()
        content, then = self._buckets.pop(key, (self._most, now))
        content = min(self._most, content + (now - then) * self._per_second)
        wait = 0.0 if content >= 1 else (1 - content) / self._per_second
        self._buckets[key] = (content if wait else content - 1, now)
        if len(self._buckets) > MOST_KEYS:
            self._buckets.popitem(last=False)
        return wait
