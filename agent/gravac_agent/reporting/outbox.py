"""The queue of records that the controller has not acknowledged, and the time for attempts to deliver them."""

import logging
import math
import random
import threading
import time
from collections import deque

from gravac.protocol import End, Event, WindowReport

log = logging.getLogger("gravac.agent")

OutboxRecord = WindowReport | Event | End

MAX_WINDOWS = 1024
"""Windows queued while there is no controller. Beyond it the oldest is dropped, and the journal shows the gap."""
MAX_EVENTS = 1024
FIRST_PAUSE_SECONDS = 1.0
"""Pause after the first failure; doubled after each. An attempt is three requests until the first invalid answer
(proof, registration, record), so that no server can make an agent send more than 5 requests a second."""
MAX_PAUSE_SECONDS = 5.0
MAX_START_PAUSE_SECONDS = 60.0
"""Pause between attempts to start a controller, each of which takes a second of CPU from the training."""
MAX_REASONS = 8
"""Reasons logged in one outage: a server that answers with new reasons all the time must not fill the log."""


class Outbox:
    """Records, oldest first, in bounded memory. Not thread-safe: the owner locks. Records are removed by identity."""

    def __init__(self, max_windows: int = MAX_WINDOWS, max_events: int = MAX_EVENTS) -> None:
        self._records: deque[OutboxRecord] = deque()
        self._max_windows, self._max_events = max_windows, max_events
        self._in_flight: OutboxRecord | None = None
        self._refusals = 0  # of the oldest record, in a row
        self.windows = 0
        """Queued records that are windows."""
        self.dropped_windows = 0
        self.dropped_events = 0
        """Events, and the end where it was dropped."""

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: OutboxRecord) -> None:
        """Append a record. Beyond the limit of its kind, the oldest record that is not in flight is dropped."""
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
        """Return the oldest record. It is in flight until it is removed or ``next`` is called again."""
        self._in_flight = self._records[0] if self._records else None
        return self._in_flight

    def first_window(self) -> int | None:
        """Return the number of the oldest window."""
        return next((queued.window for queued in self._records if isinstance(queued, WindowReport)), None)

    def refuse(self) -> int:
        """Note that the record in flight was refused. Return how often it was, in a row."""
        self._refusals += 1
        return self._refusals

    def remove(self, record: OutboxRecord) -> bool:
        """Remove exactly this record. Return False when it is not in the queue any more."""
        self._refusals = 0
        if record is self._in_flight:
            self._in_flight = None
        for place, queued in enumerate(self._records):
            if queued is record:
                del self._records[place]
                self.windows -= isinstance(record, WindowReport)
                return True
        return False

    def drop(self, record: OutboxRecord) -> None:
        """Remove exactly this record and count it as dropped."""
        if self.remove(record):
            if isinstance(record, WindowReport):
                self.dropped_windows += 1
            else:
                self.dropped_events += 1

    def losses(self) -> str | None:
        """Return, as text, what is lost when nothing more can be delivered; None when nothing is."""
        others = len(self._records) - self.windows
        counts = {
            "windows that were never acknowledged": self.windows,
            "windows that were dropped": self.dropped_windows,
            "events": others + self.dropped_events,
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or None

    def _drop_oldest(self, kind: type[OutboxRecord]) -> bool:
        for place, queued in enumerate(self._records):
            if isinstance(queued, kind) and queued is not self._in_flight:
                del self._records[place]
                return True
        return False


class RetryPauses:
    """Pauses between attempts, which grow with each failure in a row. Logs each reason once in an outage."""

    def __init__(self) -> None:
        self._seconds = FIRST_PAUSE_SECONDS
        self._reasons: set[str] = set()

    def failed(
        self, reason: str, retry_after: float = 0.0, starting: bool = False, ending: bool = False
    ) -> float:
        """Record a failure.

        Args:
            reason: Reason, for the log.
            retry_after: Least seconds that the controller requested.
            starting: Whether the agent's own controller did not start.
            ending: Whether the training has ended.

        Returns:
            Seconds to wait before the next attempt.
        """
        if reason not in self._reasons and len(self._reasons) < MAX_REASONS:
            self._reasons.add(reason)
            then = (
                "the training has ended, reports are tried a little longer"
                if ending
                else "training goes on, reports are queued"
            )
            log.warning("%s; %s", reason, then)
        seconds = max(self._seconds * random.uniform(1.0, 1.5), retry_after)
        self._seconds = min(2 * self._seconds, MAX_START_PAUSE_SECONDS if starting else MAX_PAUSE_SECONDS)
        return seconds

    def succeeded(self, delivered: bool) -> None:
        """Record an attempt without a failure. ``delivered``: a record went out; a registration alone proves little."""
        self._reasons.clear()
        if delivered:
            self._seconds = FIRST_PAUSE_SECONDS


class Closing:
    """The end of the training, which leaves a bounded time to deliver what is queued."""

    def __init__(self) -> None:
        self._began, self._until = threading.Event(), 0.0

    @property
    def began(self) -> bool:
        """Whether the training has ended."""
        return self._began.is_set()

    def begin(self, seconds: float) -> None:
        """End the training, with these seconds left."""
        self._until = time.monotonic() + seconds
        self._began.set()

    def seconds_left(self) -> float:
        """Return the seconds left; while the training goes on, infinitely many."""
        return self._until - time.monotonic() if self.began else math.inf

    def pause(self, seconds: float) -> None:
        """Wait, even if records arrive. At the end of the training the pause is short, but never zero."""
        began = time.monotonic()
        if self._began.wait(seconds):
            time.sleep(max(0.0, began + FIRST_PAUSE_SECONDS - time.monotonic()))


def label(record: OutboxRecord) -> str:
    """Return the name of a record for a log line."""
    return (
        f"window {record.window}"
        if isinstance(record, WindowReport)
        else f"an {type(record).__name__.lower()}"
    )
