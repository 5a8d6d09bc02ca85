"""A job read from a trace file, as it was after any of its windows. No decision is made again.

The trace is copied into a private folder while it is read. A long one is shown before all of it is read: always as it
was after some window, with everything known at that time, so that no figure on the page counts half a trace.
"""

import copy
import threading
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from gravac.protocol import Decision, JobSpec, Override, WindowReport
from gravac.traces import Line, Trace, TraceError, TraceRecord, parts
from gravac.traces.line import decode
from gravac.traces.parts import Part
from gravac_controller.jobs.job import Job
from gravac_controller.jobs.journal import Journal, OpenJournals
from gravac_controller.jobs.reader import JournalEnd
from gravac_controller.live.projection import LiveJob
from gravac_controller.live.recent import Budget
from gravac_controller.lock import being_written
from gravac_controller.replay.copy import CopyingReader
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.history import History
from gravac_controller.views.models import DecisionView, State, WindowView
from gravac_controller.views.thinning import ThinnedWindow

EVERY = 50
"""Windows between two checkpoints: at most this many are read again to show an older one."""
AT_ONCE = 500
"""Windows read before the page is shown."""
MOST_WINDOWS = 20_000
"""Windows on the page; longer traces are thinned (``views.thinning``)."""


class ReplayedLive(LiveJob):
    """A job whose clock is its trace, so it is never stale. An order is in force once a decision applied it."""

    def apply(self, line: int, time: float, record: TraceRecord) -> None:
        waiting, orders = self.orders.pending, self.orders
        super().apply(line, time, record)
        if waiting is not None and orders.pending is None and isinstance(record, Decision):
            orders.in_force = None if waiting.action == "resume" else waiting

    interrupted = False
    """True at the end of a trace that does not end with its job, and that no process writes to any more."""

    def state(self) -> State:
        return "ended" if self.presence.ended else "interrupted" if self.interrupted else "running"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state before the line of ``window``, which has number ``line`` and begins at ``offset`` of the copy."""

    window: int
    offset: int
    line: int
    time: float
    summary: str
    spec: JobSpec
    decision: Decision
    override: Override | None
    pending_override: Override | None

    def restored(self, settings: ControllerSettings) -> ReplayedLive:
        """Return the job in this state."""
        live = ReplayedLive(settings)
        live.apply(0, self.time, Part(number=2, lines=0, digest="0" * 16, summary=self.summary))
        live.apply(0, self.time, self.spec.model_copy(update={"first_window": self.window}))
        live.apply(0, self.time, self.decision)
        live.orders.in_force, live.orders.pending = self.override, self.pending_override
        return live


class ReplayedJob(Job):
    """The job of the trace at ``path``. ``folder``: an empty private folder.

    The constructor reads the first windows (all of a short trace), ``read_on`` reads the rest in another thread.
    ``live`` is the job at the last call of ``drawn``. Raises TraceError, OSError.
    """

    def __init__(
        self, path: Path, folder: Path, settings: ControllerSettings, at_once: int = AT_ONCE
    ) -> None:
        self._copy = folder / "trace" / parts.ACTIVE
        self._copy.parent.mkdir(mode=0o700)
        unused, budget = ThreadPoolExecutor(1), Budget(settings.limits.history_bytes)  # nothing is written
        open_journals = OpenJournals(settings.max_connections)
        super().__init__(self._copy.parent, settings, lambda: 0.0, unused, unused, budget, open_journals)
        self.first_window: int | None = None
        self.problem = ""
        self.done = False
        self.shown = threading.Event()
        """Set once a page has what it draws, or at ``stop``."""
        self._stopped = False
        self._reading = threading.Lock()
        self._source = path
        self._stream = CopyingReader(path, self._copy)
        self._trace = Trace(cast(BinaryIO, self._stream), str(path), verify=True, owned=True)
        # The state after the last line read; pages of older windows come from the copy.
        self._ahead = ReplayedLive(settings.with_limits(history_windows=1))
        self._history = History(MOST_WINDOWS)
        self._undecided: WindowView | None = None
        self._pending: Line | None = None  # read already, but not applied yet
        self._offset = self._since = 0
        self._checkpoints: list[Checkpoint] = []
        self.journal = self._copied = _CopiedJournal(self._copy.parent, settings)
        self._read(at_once)
        if self._ahead.spec is None or self._ahead.decision is None:
            raise TraceError(str(path), None, "holds no job")
        self.drawn()

    @property
    def name(self) -> str:
        """The job's name, as registered."""
        return self._ahead.spec_and_decision()[0].job

    @property
    def notes(self) -> tuple[str, ...]:
        """What was repaired or is missing in the part read so far."""
        return tuple(self._trace.notes)

    @property
    def windows(self) -> int:
        """Number of windows read so far."""
        return self._ahead.counts.windows

    @property
    def share(self) -> float:
        """Share of the trace that has been read, 0 to 1; 1 only at its end."""
        return 1.0 if self.done else min(0.99, self._offset / (self._stream.size or 2**40))

    def read_on(self) -> None:
        """Read the rest. At a damaged line the trace ends before it, and ``problem`` says why."""
        try:
            while not self.done and not self._stopped:
                self._read(EVERY)
        except (TraceError, OSError) as error:
            with self._reading:
                self._add_to_history(None)
                self.problem, self.done = str(error), True
        finally:
            self._trace.close()

    def stop(self) -> None:
        """Make ``read_on`` return soon."""
        self._stopped = True
        self.shown.set()

    def drawn(self) -> tuple[list[ThinnedWindow], list[DecisionView]]:
        """Return the windows and decisions to draw, up to the last line read, and update ``live`` to the same line."""
        with self._reading:
            self._stream.sync()
            windows, decisions, done = list(self._history.windows), self._history.decisions(), self.done
            last = -1 if self._ahead.latest is None else self._ahead.latest.report.window
            heat = copy.deepcopy(self._ahead.recent.heat)
            self._copied.set_end(JournalEnd(self._trace.part, self._offset))
        if done:
            self.live = self._ahead
            self.live.interrupted = not being_written(self._source)
        else:
            self.live = self.as_of(last)
            self.live.recent.heat = heat
        return windows, decisions

    def as_of(self, window: int) -> LiveJob:
        """Return the job after the decision on ``window`` and the events before the next one. Raises OSError."""
        at = bisect_right([checkpoint.window for checkpoint in self._checkpoints], window) - 1
        if at < 0:
            live, offset, number = ReplayedLive(self._settings), 0, 1
        else:
            found = self._checkpoints[at]
            live, offset, number = found.restored(self._settings), found.offset, found.line
        end = self.journal.end.size
        with self._copy.open("rb") as file:
            file.seek(offset)
            while file.tell() < end:
                line = decode(file.readline().removesuffix(b"\n"), number, "", str(self._copy))
                if isinstance(line.record, WindowReport) and line.record.window > window:
                    break
                live.apply(line.number, line.time, line.record)
                number += 1
        return live

    def _read(self, windows: int) -> None:
        """Apply this many more windows and what follows the last of them, and make checkpoints."""
        left = windows
        with self._reading:
            while True:
                line = self._pending or next(self._trace, None)
                self._pending = None
                if line is None:
                    self._add_to_history(None)
                    self.done = True
                    return
                if isinstance(line.record, WindowReport):
                    if left == 0:
                        self._pending = line
                        return
                    left -= 1
                    self._before(line, line.record.window)
                self._apply(line)

    def _before(self, line: Line, window: int) -> None:
        """Make a checkpoint before every ``EVERY``-th window."""
        if self.first_window is None:
            self.first_window = window
        self._since += 1
        if self._since > EVERY:
            self._since = 1
            self._checkpoints.append(self._checkpoint(line, window, self._offset))

    def _apply(self, line: Line) -> None:
        """Apply one line."""
        if isinstance(line.record, WindowReport):
            self._add_to_history(None)
        self._ahead.apply(line.number, line.time, line.record)
        if isinstance(line.record, WindowReport):
            self._undecided = self._ahead.latest
        elif isinstance(line.record, Decision):
            self._history.begin(self._ahead.recent.decisions[-1])
            self._add_to_history(self._ahead.recent.decisions[-1])
        self._offset = self._trace.good_bytes

    def _add_to_history(self, decision: DecisionView | None) -> None:
        """Add the window that waits for its decision; None: the trace has no decision on it."""
        if self._undecided is not None:
            self._history.add(self._undecided, decision)
            self._undecided = None

    def _checkpoint(self, line: Line, window: int, offset: int) -> Checkpoint:
        live = self._ahead
        spec, decision = live.spec_and_decision()
        return Checkpoint(
            window=window,
            offset=offset,
            line=line.number,
            time=line.time,
            summary=live.carried(),
            spec=spec,
            decision=decision,
            override=live.orders.in_force,
            pending_override=live.orders.pending,
        )


class _CopiedJournal(Journal):
    """The copy of a trace as a journal. Nothing is written to it."""

    def __init__(self, folder: Path, settings: ControllerSettings) -> None:
        super().__init__(folder, settings, lambda: 0.0)

    def set_end(self, end: JournalEnd) -> None:
        """Set where readers stop."""
        self._end = end
