"""A job's journal as a controller keeps it: part after part, full ones compressed, the oldest dropped in time."""

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from gravac.protocol import Decision, JobSpec
from gravac.traces import Line, Trace, TraceError, TraceRecord, TraceWriter, parts
from gravac_controller.jobs.reader import End, JournalReader
from gravac_controller.settings import ControllerSettings

LOAD_BYTES = 64 << 20
"""Most bytes of full parts read to take a job up again: it goes on from its last part alone."""

logger = logging.getLogger("gravac.controller")


class Journal:
    """Not thread-safe but for ``reader`` and ``tidy``."""

    def __init__(self, folder: Path, settings: ControllerSettings, now: Callable[[], float]) -> None:
        self.path = folder / parts.ACTIVE
        self.reader = JournalReader(self.path)
        self._settings, self._now = settings, now
        self._writer: TraceWriter | None = None
        self._end = End(1, 0)
        self._left: tuple[int, str] | None = None  # lines and digest when it was last closed
        self._tidying = threading.Lock()
        self._untidy = threading.Event()  # parts may have filled since the last look

    def load(self, visit: Callable[[Line], object]) -> None:
        """Open it, and ``visit`` its lines from the part on that history begins with.

        Raises TraceError, ValueError; ``traces.Displaced`` while it is open here and another file has its name: what
        was acknowledged is in the open one.
        """
        if self._writer is not None:
            self._writer.check()
        self.close()
        self._left = None
        parts.repair(self.path)
        last = ""
        for path in self._recent():
            with Trace(parts.open_full_part(path), str(path), verify=True, owned=True) as trace:
                for line in trace:
                    visit(line)
            if last and trace.begins_after != last:
                raise TraceError(str(path), None, "does not go on where the part before it ends")
            last = trace.digest
        writer = TraceWriter(self.path, self._now, visit)
        if last and writer.begins_after != last:
            writer.close()
            raise TraceError(str(self.path), None, "does not go on where the part before it ends")
        self._writer = writer
        self._note_end(writer)

    @property
    def end(self) -> End:
        """How much of it there is for readers: whole lines only."""
        return self._end

    def append(self, *records: TraceRecord) -> tuple[Line, ...]:
        """Write and sync; opens the journal where it is closed. Raises OSError, ValueError (see ``TraceWriter``)."""
        if self._writer is None:
            self._writer = self._reopened()
        lines = self._writer.append(*records)
        self._note_end(self._writer)
        return lines

    @property
    def full(self) -> bool:
        """Whether it is time for a new part."""
        return self._end.size >= self._settings.journal_part_bytes

    def turn(self, spec: JobSpec, decision: Decision, summary: str) -> tuple[Line, ...]:
        """Go on in a new part, which begins with these; returns its lines. None if the disk refuses: this one goes on.

        Call it right after a decision. ``tidy`` does the slow rest.
        """
        assert self._writer is not None
        try:
            lines = self._writer.begin_part(spec, decision, summary=summary)
        except (OSError, ValueError) as error:
            logger.warning("%s: no new part was begun, the old one goes on: %s", self.path, error)
            return ()
        self._note_end(self._writer)
        return lines

    def tidy(self) -> None:
        """Compress full parts, and delete the oldest beyond ``journal_keep_bytes``. In another thread, if you like.

        Of several threads one does it, and looks again after each call that came meanwhile; the others return at once.
        """
        self._untidy.set()
        # In this order: whoever finds the lock held has left its note before the holder looks for one.
        while self._untidy.is_set() and self._tidying.acquire(blocking=False):
            try:
                self._untidy.clear()
                self._tidy_parts()
            finally:
                self._tidying.release()

    def _tidy_parts(self) -> None:
        """Once over all full parts; one that the disk refuses, or that has gone, does not keep the others."""
        folder, refused = self.path.parent, None
        for path in parts.full_parts(folder).values():
            if path.suffix == ".jsonl":
                try:
                    parts.compress(path)
                except OSError as error:
                    refused = error
        kept = 0
        for path in reversed(parts.full_parts(folder).values()):
            try:
                kept += path.stat().st_size
                if kept > self._settings.journal_keep_bytes:
                    path.unlink()
            except OSError as error:
                refused = error
        if refused is not None:
            logger.warning("%s: some full parts stay as they are for now: %s", folder, refused)

    def close(self) -> None:
        """Close it; the next write opens it again."""
        if self._writer is not None:
            self._left = (self._writer.lines, self._writer.digest)
            self._writer.close()
            self._writer = None

    def _reopened(self) -> TraceWriter:
        """The journal as it was when it was closed. Raises TraceError when somebody changed it since."""
        writer = TraceWriter(self.path, self._now)
        if self._left not in (None, (writer.lines, writer.digest)):
            writer.close()
            raise TraceError(
                str(self.path), None, "was changed while no run was using it; it will be read again"
            )
        return writer

    def _recent(self) -> list[Path]:
        """The full parts that hold the windows kept in memory, or so many as may be read; one at least."""
        if not self.path.exists():
            return []
        number, files, size = parts.part_number(self.path), parts.full_parts(self.path.parent), 0
        recent: list[Path] = []
        begins: int | None = None  # not known where the active part's head is torn
        with contextlib.suppress(TraceError):
            begins = self.reader.first_window(number) if number > 1 else 0
        while (number := number - 1) in files:
            size += parts.plain_size(files[number])
            if recent and size > LOAD_BYTES:
                break
            recent.append(files[number])
            first = self.reader.first_window(number)
            begins = first if begins is None else begins
            if begins - first >= self._settings.history_windows:
                break
        return recent[::-1]

    def _note_end(self, writer: TraceWriter) -> None:
        self._end = End(writer.part, writer.size)
