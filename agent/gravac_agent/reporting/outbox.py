"""The records that the controller has not acknowledged yet, oldest first, in a bounded amount of memory."""

from collections import deque

from gravac.protocol import End, Event, WindowReport

OutboxRecord = WindowReport | Event | End

MAX_WINDOWS = 1024
"""Windows kept while there is no controller; beyond it the oldest is dropped, and the journal shows the gap."""
MAX_EVENTS = 1024


class Outbox:
    """Not thread-safe: the owner locks. A record leaves by identity, never one that equals it."""

    def __init__(self, max_windows: int = MAX_WINDOWS, max_events: int = MAX_EVENTS) -> None:
        self._records: deque[OutboxRecord] = deque()
        self._max_windows, self._max_events = max_windows, max_events
        self._in_flight: OutboxRecord | None = None
        self.windows = 0
        """How many of the records are windows."""
        self.dropped_windows = 0
        self.dropped_events = 0
        """Events, and the end where it was dropped."""

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: OutboxRecord) -> None:
        """Append a record. Where that is one too many of its kind, the oldest one that is not in flight is dropped."""
        self._records.append(record)
        if isinstance(record, WindowReport):
            self.windows += 1
            if self.windows > self._max_windows and self._drop_oldest(WindowReport):
                self.windows -= 1
                self.dropped_windows += 1
        elif isinstance(record, Event):
            events = len(self._records) - self.windows
            if events > self._max_events and self._drop_oldest(Event):
                self.dropped_events += 1

    def next(self) -> OutboxRecord | None:
        """Return the oldest record, which is in flight from now on until it is removed or ``next`` is called again."""
        self._in_flight = self._records[0] if self._records else None
        return self._in_flight

    def first_window(self) -> int | None:
        """Return the number of the oldest window."""
        return next((one.window for one in self._records if isinstance(one, WindowReport)), None)

    def remove(self, record: OutboxRecord) -> bool:
        """Remove exactly this record; False when it is not here any more."""
        if record is self._in_flight:
            self._in_flight = None
        for place, one in enumerate(self._records):
            if one is record:
                del self._records[place]
                self.windows -= isinstance(record, WindowReport)
                return True
        return False

    def drop(self, record: OutboxRecord) -> None:
        """Remove exactly this record and count it as lost."""
        if self.remove(record):
            if isinstance(record, WindowReport):
                self.dropped_windows += 1
            else:
                self.dropped_events += 1

    def losses(self) -> str | None:
        """Say what is lost when nothing more can be delivered; None when nothing is."""
        others = len(self._records) - self.windows
        counts = {
            "windows that were never acknowledged": self.windows,
            "windows that were dropped": self.dropped_windows,
            "events": others + self.dropped_events,
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or None

    def _drop_oldest(self, kind: type[OutboxRecord]) -> bool:
        for place, one in enumerate(self._records):
            if isinstance(one, kind) and one is not self._in_flight:
                del self._records[place]
                return True
        return False


def name_of(record: OutboxRecord) -> str:
    """Name a record for a log line."""
    return (
        f"window {record.window}"
        if isinstance(record, WindowReport)
        else f"an {type(record).__name__.lower()}"
    )
