"""A job read from a trace file, as it was after any of its windows. Nothing is decided again.

The trace is copied into a folder of our own while it is read (``copied``). A long one is shown before all of it has
been read: always as of a window, with all that was known then, so that no number on the page counts half a trace.
"""

import copy
import threading
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from gravac.protocol import Decision, JobSpec, Override, WindowReport
from gravac.traces import Line, Trace, TraceError, TraceRecord, parts
from gravac.traces.line import decode
from gravac.traces.parts import Part
from gravac_controller.jobs.job import Job
from gravac_controller.jobs.journal import Journal
from gravac_controller.jobs.reader import End
from gravac_controller.jobs.writers import Writers
from gravac_controller.live.budget import Budget
from gravac_controller.live.projection import LiveJob
from gravac_controller.lock import being_written
from gravac_controller.replay.copied import Copied
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.history import History
from gravac_controller.views.models import DecisionView, State, WindowView
from gravac_controller.views.thinning import Kept

EVERY = 50
"""Windows between two checkpoints: the most that is read again to look back."""
AT_ONCE = 500
"""Windows read before anything is shown."""
MOST_WINDOWS = 20_000
"""Windows that the page holds; of longer traces those that stand out (``thinning``)."""


class ReplayedLive(LiveJob):
    """A job whose clock is its trace: never stale. An order is in force once a window was decided under it."""

    def apply(self, line: int, time: float, record: TraceRecord) -> None:
        waiting = self.ordered
        super().apply(line, time, record)
        if waiting is not None and self.ordered is None:
            self.in_force(None if waiting.action == "resume" else waiting)

    interrupted = False
    """Set at the end of a trace that does not say that the job ended, and that nobody writes any more."""

    def state(self) -> State:
        return "ended" if self.ended else "interrupted" if self.interrupted else "running"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was known before the line of ``window``, which is at ``offset`` of the copy and has number ``line``."""

    window: int
    offset: int
    line: int
    time: float
    summary: str
    spec: JobSpec
    decision: Decision
    override: Override | None
    ordered: Override | None

    def restored(self, settings: ControllerSettings) -> ReplayedLive:
        """The job as it was."""
        live = ReplayedLive(settings)
        live.apply(0, self.time, Part(number=2, lines=0, digest="0" * 16, summary=self.summary))
        live.apply(0, self.time, self.spec.model_copy(update={"first_window": self.window}))
        live.apply(0, self.time, self.decision)
        live.override, live.ordered = self.override, self.ordered
        return live


class ReplayedJob(Job):
    """The job of the trace at ``path``. ``folder`` is empty and ours.

    The first windows are read at once (all of a short trace), the rest by ``read_on``, in a thread of its own.
    ``live`` is the job as of the last ``told``. Raises TraceError, OSError.
    """

    def __init__(
        self, path: Path, folder: Path, settings: ControllerSettings, at_once: int = AT_ONCE
    ) -> None:
        self._copy = folder / "trace" / parts.ACTIVE
        self._copy.parent.mkdir(mode=0o700)
        writers, budget = Writers(), Budget(settings.history_bytes)  # nothing is written
        super().__init__(self._copy.parent, settings, lambda: 0.0, writers, budget)
        self.first_window: int | None = None
        self.problem = ""
        self.done = False
        self.shown = threading.Event()
        """Set once somebody looks, or nobody will."""
        self._stopped = False
        self._reading = threading.Lock()
        self._source = path
        self._stream = Copied(path, self._copy)
        self._trace = Trace(cast(BinaryIO, self._stream), str(path), verify=True, owned=True)
        # As of the last line read; pages of older windows come from the copy.
        self._ahead = ReplayedLive(settings.model_copy(update={"history_windows": 1}))
        self._history = History(MOST_WINDOWS)
        self._waiting: WindowView | None = None
        self._held: Line | None = None  # read already, the next to be taken in
        self._offset = self._since = 0
        self._checkpoints: list[Checkpoint] = []
        self.journal = self._copied = _ReadOnly(self._copy.parent, settings)
        self._read(at_once)
        if self._ahead.spec is None or self._ahead.decision is None:
            raise TraceError(str(path), None, "holds no job")
        self.told()

    @property
    def name(self) -> str:
        """As registered."""
        return self._ahead.known()[0].job

    @property
    def notes(self) -> tuple[str, ...]:
        """What was repaired or is missing, as far as it has been read."""
        return tuple(self._trace.notes)

    @property
    def windows(self) -> int:
        """How many have been read."""
        return self._ahead.totals.windows

    @property
    def share(self) -> float:
        """How much of the trace has been read, 0 to 1; 1 only at its end."""
        return 1.0 if self.done else min(0.99, self._offset / (self._stream.size or 2**40))

    def read_on(self) -> None:
        """Read the rest. Where a line is bad, what is before it is the trace, and ``problem`` says so."""
        try:
            while not self.done and not self._stopped:
                self._read(EVERY)
        except (TraceError, OSError) as error:
            with self._reading:
                self._decided(None)
                self.problem, self.done = str(error), True
        finally:
            self._trace.close()

    def stop(self) -> None:
        """Have ``read_on`` return soon."""
        self._stopped = True
        self.shown.set()

    def told(self) -> tuple[list[Kept], list[DecisionView]]:
        """What there is to draw as of the last line read; from here on that is what ``live`` and ``as_of`` know."""
        with self._reading:
            self._stream.sync()
            windows, decisions, done = list(self._history.windows), self._history.decisions(), self.done
            last = -1 if self._ahead.latest is None else self._ahead.latest.report.window
            heat = copy.deepcopy(self._ahead.heat)
            self._copied.ends(End(self._trace.part, self._offset))
        if done:
            self.live = self._ahead
            self.live.interrupted = not being_written(self._source)
        else:
            self.live = self.as_of(last)
            self.live.heat = heat
        return windows, decisions

    def as_of(self, window: int) -> LiveJob:
        """The job after the decision on ``window``, and what happened before the next one. Raises OSError."""
        at = bisect_right([one.window for one in self._checkpoints], window) - 1
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
        """Take in so many windows more, and what follows the last of them, leaving checkpoints."""
        left = windows
        with self._reading:
            while True:
                line = self._held or next(self._trace, None)
                self._held = None
                if line is None:
                    self._decided(None)
                    self.done = True
                    return
                if isinstance(line.record, WindowReport):
                    if left == 0:
                        self._held = line
                        return
                    left -= 1
                    self._before(line, line.record.window)
                self._take(line)

    def _before(self, line: Line, window: int) -> None:
        """A window comes: leave a checkpoint every so often."""
        if self.first_window is None:
            self.first_window = window
        self._since += 1
        if self._since > EVERY:
            self._since = 1
            self._checkpoints.append(self._checkpoint(line, window, self._offset))

    def _take(self, line: Line) -> None:
        """Fold one line."""
        if isinstance(line.record, WindowReport):
            self._decided(None)
        self._ahead.apply(line.number, line.time, line.record)
        if isinstance(line.record, WindowReport):
            self._waiting = self._ahead.latest
        elif isinstance(line.record, Decision):
            self._history.begin(self._ahead.decisions[-1])
            self._decided(self._ahead.decisions[-1])
        self._offset = self._trace.good_bytes

    def _decided(self, decision: DecisionView | None) -> None:
        """The window that waits for its decision has it, or (None) never will."""
        if self._waiting is not None:
            self._history.add(self._waiting, decision)
            self._waiting = None

    def _checkpoint(self, line: Line, window: int, offset: int) -> Checkpoint:
        live = self._ahead
        spec, decision = live.known()
        return Checkpoint(
            window=window,
            offset=offset,
            line=line.number,
            time=line.time,
            summary=live.carried(),
            spec=spec,
            decision=decision,
            override=live.override,
            ordered=live.ordered,
        )


class _ReadOnly(Journal):
    """A journal that ends where the trace does, as far as it has been read."""

    def __init__(self, folder: Path, settings: ControllerSettings) -> None:
        super().__init__(folder, settings, lambda: 0.0)

    def ends(self, end: End) -> None:
        """This is how much there is."""
        self._end = end
