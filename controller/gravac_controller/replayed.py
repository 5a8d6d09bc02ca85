"""A job read from a trace file, as it was after any of its windows. Nothing is decided again: see ``gravac.replay``.

The trace is copied once into a folder of our own, whole and uncompressed, so that it can be read from any place on
while the original goes on, turns to a new part, or is deleted.
"""

import zlib
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from gravac import parts
from gravac.orders import Override
from gravac.parts import Part
from gravac.protocol import Decision, JobSpec, WindowReport
from gravac.trace import MAX_TRACE_BYTES, Trace, TraceError
from gravac.traceline import MAX_LINE_BYTES, Line, TraceRecord, decode
from gravac_controller.job import Job
from gravac_controller.journal import Journal
from gravac_controller.live import LiveJob
from gravac_controller.reader import End
from gravac_controller.settings import ControllerSettings
from gravac_controller.views import State

EVERY = 50
"""Windows between two checkpoints: the most that is read again to look back."""
_BOM = b"\xef\xbb\xbf"


class ReplayedLive(LiveJob):
    """A job whose clock is its trace: never stale. An order is in force once a window was decided under it."""

    def apply(self, line: int, time: float, record: TraceRecord) -> None:
        waiting = self.ordered
        super().apply(line, time, record)
        if waiting is not None and self.ordered is None:
            self.in_force(None if waiting.action == "resume" else waiting)

    def state(self) -> State:
        return "ended" if self.ended else "running"


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
    """The job of the trace at ``path``. ``folder`` is empty and ours. Raises TraceError, OSError."""

    def __init__(self, path: Path, folder: Path, settings: ControllerSettings) -> None:
        self._copy = folder / "trace" / parts.ACTIVE
        self._copy.parent.mkdir(mode=0o700)
        copy_plain(path, self._copy)
        super().__init__(self._copy.parent, settings, lambda: 0.0)
        self.live = ReplayedLive(settings)
        self.first_window: int | None = None
        self.notes: tuple[str, ...] = ()
        self._checkpoints: list[Checkpoint] = []
        self.journal = _ReadOnly(self._copy.parent, settings, self._read(str(path)))

    @property
    def name(self) -> str:
        """As registered."""
        return self.live.known()[0].job

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

    def _read(self, path: str) -> End:
        """Take in the whole copy, leaving checkpoints."""
        offset, since = 0, 0
        with Trace(self._copy.open("rb"), path, verify=True, owned=True) as trace:
            for line in trace:
                if isinstance(line.record, WindowReport):
                    if self.first_window is None:
                        self.first_window = line.record.window
                    since += 1
                    if since > EVERY:
                        since = 1
                        self._checkpoints.append(self._checkpoint(line, line.record.window, offset))
                self.live.apply(line.number, line.time, line.record)
                offset = trace.good_bytes
        if self.live.spec is None or self.live.decision is None:
            raise TraceError(path, None, "holds no job")
        self.notes = tuple(trace.notes)
        return End(trace.part, offset)

    def _checkpoint(self, line: Line, window: int, offset: int) -> Checkpoint:
        live = self.live
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
    """A journal that ends where the trace did."""

    def __init__(self, folder: Path, settings: ControllerSettings, end: End) -> None:
        super().__init__(folder, settings, lambda: 0.0)
        self._end = end


def copy_plain(source: Path, target: Path) -> None:
    """Copy a trace, a gzipped one or one in parts, line by line: no compression, no CR, no byte order mark.

    What cannot be read of a compressed file that ends early is left out. Raises TraceError, OSError.
    """
    total = 0
    try:
        stream = parts.whole(source) if source.name == parts.ACTIVE else parts.opened(source)
        with stream, target.open("xb") as file:
            try:
                while raw := stream.readline(MAX_LINE_BYTES + 2):
                    raw = raw.removeprefix(_BOM) if total == 0 else raw
                    total += len(raw)
                    if total > MAX_TRACE_BYTES:
                        raise TraceError(
                            str(source), None, f"the trace is longer than {MAX_TRACE_BYTES} bytes"
                        )
                    file.write(raw[:-2] + b"\n" if raw.endswith(b"\r\n") else raw)
            except EOFError:
                pass
    except (OSError, zlib.error, EOFError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(str(source), None, f"cannot be read: {why}") from None
