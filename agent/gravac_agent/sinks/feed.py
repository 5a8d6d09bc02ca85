"""Brings rows to sinks, each on a thread of its own, so that none of them delays the training or another one."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from gravac.protocol import Decision, JobSpec, WindowReport
from gravac_agent.sinks.base import Sink, SinkRow, figures_of_window

log = logging.getLogger("gravac.agent")

MOST_ROWS = 1024
"""Rows that wait for a sink. Beyond it the oldest is dropped."""
PAUSE_SECONDS = 1.0
"""Pause between two writes. Rows that come meanwhile are written together."""
RETRY_SECONDS = 15.0
"""Pause after a write that failed."""
MOST_REASONS = 8
"""Reasons that are logged: a client must not fill the log."""
CLOSE_SECONDS = 10.0
"""How long the end of the training waits for all sinks together."""


class Feed:
    """One sink, and the rows that wait for it. Nothing here raises, and ``put`` never waits for the sink."""

    def __init__(self, sink: Sink, spec: JobSpec) -> None:
        self._sink, self._spec = sink, spec
        self._rows: deque[SinkRow] = deque()
        self._lock, self._wake, self._closing = threading.Lock(), threading.Event(), threading.Event()
        self._lost = 0
        self._in_flight = 0
        self._opened = False
        self._reasons: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=f"gravac-sink-{sink.name}", daemon=True)
        self._thread.start()

    def put(self, row: SinkRow) -> None:
        """Add a row."""
        with self._lock:
            full = len(self._rows) == MOST_ROWS
            if full:
                self._rows.popleft()
                self._lost += 1
            self._rows.append(row)
        if full and self._lost == 1:
            log.warning(
                "sink %s takes no rows: from now on the oldest of %d are dropped", self._sink.name, MOST_ROWS
            )
        self._wake.set()

    def begin_close(self) -> None:
        """Let the thread write what is left, and end."""
        self._closing.set()
        self._wake.set()

    def end_close(self, until: float) -> None:
        """Wait for that until a time of the monotonic clock, and log what was lost."""
        self._thread.join(max(0.0, until - time.monotonic()))
        hangs = self._thread.is_alive()
        with self._lock:
            lost = self._lost + len(self._rows) + self._in_flight
        if hangs or lost:
            why = f" (it did not end within {CLOSE_SECONDS:g} s)" if hangs else ""
            log.warning("sink %s lacks %d rows%s", self._sink.name, lost, why)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            closing = self._closing.is_set()
            fine = self._deliver()
            if closing:
                if self._opened:
                    self._attempt(self._sink.close)
                return
            self._closing.wait(PAUSE_SECONDS if fine else RETRY_SECONDS)

    def _deliver(self) -> bool:
        """Open the sink, and write the rows. Return False where that failed: rows of a failed write are lost."""
        with self._lock:
            if not self._rows:
                return True
        if not self._opened:
            self._opened = self._attempt(lambda: self._sink.open(self._spec))
            if not self._opened:
                self._wake.set()  # again after the pause
                return False
        with self._lock:
            rows = list(self._rows)
            self._rows.clear()
            self._in_flight = len(rows)
        written = self._attempt(lambda: self._sink.write(rows))
        with self._lock:
            self._lost += 0 if written else len(rows)
            self._in_flight = 0
        return written

    def _attempt(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception as error:  # whatever a client raises
            reason = f"{type(error).__name__}: {error}"
            if len(self._reasons) < MOST_REASONS and reason not in self._reasons:
                self._reasons.add(reason)
                when = " at the end of the training" if self._closing.is_set() else "; training goes on"
                log.warning("sink %s failed%s: %s", self._sink.name, when, reason)
            return False
        return True


class Feeds:
    """What a job tells its sinks: windows, decisions, and the address of its page.

    Args:
        sinks: Sinks that are loaded.
        spec: The job.
    """

    def __init__(self, sinks: Sequence[Sink], spec: JobSpec) -> None:
        self._spec, self._step = spec, 0
        self._decided: Decision | None = None
        self._page: str | None = None
        self._feeds = [Feed(sink, spec) for sink in sinks]

    def window(self, report: WindowReport) -> None:
        """Tell a window."""
        if self._feeds:
            self._step = report.last_step + 1
            self._put(SinkRow(self._step, time.time(), figures_of_window(report, self._spec)))

    def decision(self, decision: Decision) -> None:
        """Tell a decision, where it is another than the last one."""
        if self._feeds and decision != self._decided:
            self._decided = decision
            self._put(SinkRow(self._step, time.time(), decision=decision))

    def page(self, url: str | None) -> None:
        """Tell the address of the page, where it is another than before."""
        if self._feeds and url not in (None, self._page):
            self._page = url
            self._put(SinkRow(self._step, time.time(), page=url))

    def close(self) -> None:
        """Write what is left, within a bounded time."""
        until = time.monotonic() + CLOSE_SECONDS
        for feed in self._feeds:
            feed.begin_close()
        for feed in self._feeds:
            feed.end_close(until)

    def _put(self, row: SinkRow) -> None:
        for feed in self._feeds:
            feed.put(row)
