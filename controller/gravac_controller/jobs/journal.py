"""A job's journal on disk: written in parts, of which full ones are compressed and the oldest deleted."""

import contextlib
import logging
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

from gravac.protocol import Decision, JobSpec
from gravac.traces import Line, Trace, TraceError, TraceRecord, TraceWriter, parts
from gravac_controller.jobs.reader import JournalEnd, JournalReader
from gravac_controller.settings import ControllerSettings

LOAD_BYTES = 64 << 20
"""Bytes of full parts that are read for the history at a restart; decisions need the last part only."""
SPARE_FILES = 320
"""Files besides journals and requests: connections that wait, journals that are read, the server's own."""
LEAST_JOURNALS = 16
"""Journals that may stay open in any case."""

logger = logging.getLogger("gravac.controller")


class Journal:
    """The journal of one job. Only ``reader`` and ``tidy`` are thread-safe."""

    def __init__(self, folder: Path, settings: ControllerSettings, now: Callable[[], float]) -> None:
        self.path = folder / parts.ACTIVE
        self.reader = JournalReader(self.path)
        self._settings, self._now = settings, now
        self._writer: TraceWriter | None = None
        self._end = JournalEnd(1, 0)
        self._closed_at: tuple[int, str] | None = None  # lines and digest when it was last closed
        self._tidying = threading.Lock()
        self._untidy = threading.Event()  # parts may have become full since the last check

    def load(self, visit: Callable[[Line], object]) -> None:
        """Open the journal and call ``visit`` for each line, from the first part that history needs.

        Raises:
            TraceError, ValueError: The journal is damaged.
            inplace.Displaced: Another file took the name of the open one, which holds the acknowledged windows.
        """
        if self._writer is not None:
            self._writer.check()
        self.close()
        self._closed_at = None
        with self._tidying:  # no half compressed part is in the way, nor taken for a leftover
            parts.repair(self.path)
        last = ""
        for path in self._recent():
            with Trace(parts.open_full_part(path), str(path), verify=True, owned=True) as trace:
                for line in trace:
                    visit(line)
            if last and trace.begins_after != last:
                raise TraceError(str(path), None, "does not continue where the part before it ends")
            last = trace.digest
        writer = TraceWriter(self.path, self._now, visit)
        if last and writer.begins_after != last:
            writer.close()
            raise TraceError(str(self.path), None, "does not continue where the part before it ends")
        self._writer = writer
        self._note_end(writer)

    @property
    def end(self) -> JournalEnd:
        """The place where readers stop: behind the last whole line."""
        return self._end

    @property
    def is_open(self) -> bool:
        """Whether the file is open and locked."""
        return self._writer is not None

    def append(self, *records: TraceRecord) -> tuple[Line, ...]:
        """Write and sync records; a closed journal is opened. Raises OSError, ValueError (see ``TraceWriter``)."""
        if self._writer is None:
            self._writer = self._reopened()
        lines = self._writer.append(*records)
        self._note_end(self._writer)
        return lines

    @property
    def full(self) -> bool:
        """Return whether it is time for a new part."""
        return self._end.size >= self._settings.journal_part_bytes

    def begin_part(self, spec: JobSpec, decision: Decision, summary: str) -> tuple[Line, ...]:
        """Continue in a new part that begins with these records. Call it right after a decision.

        The slow rest is done by ``tidy``.

        Returns:
            The lines of the new part; none where the disk refuses, then the current part goes on.
        """
        assert self._writer is not None
        try:
            lines = self._writer.begin_part(spec, decision, summary=summary)
        except (OSError, ValueError) as error:
            logger.warning("%s: cannot begin a new part, so the current one goes on: %s", self.path, error)
            return ()
        self._note_end(self._writer)
        return lines

    def tidy(self) -> None:
        """Compress full parts, and delete the oldest beyond ``journal_keep_bytes``. Any thread may call it.

        Only one thread works at a time. It checks again after each call of another thread, which returns at once.
        """
        self._untidy.set()
        # In this order: a thread that finds the lock taken has set the flag before the holder checks it.
        while self._untidy.is_set() and self._tidying.acquire(blocking=False):
            try:
                self._untidy.clear()
                self._tidy_parts()
            finally:
                self._tidying.release()

    def _tidy_parts(self) -> None:
        """Go over all full parts once. One that fails or disappeared does not stop the others."""
        folder, refused = self.path.parent, None
        for path in parts.full_parts(folder).values():
            if path.suffix == ".jsonl":
                try:
                    parts.compress(path)
                except OSError as error:
                    refused = error
        total = 0
        for path in reversed(parts.full_parts(folder).values()):
            try:
                total += path.stat().st_size
                if total > self._settings.journal_keep_bytes:
                    path.unlink()
            except OSError as error:
                refused = error
        if refused is not None:
            logger.warning("%s: some full parts cannot be compressed or deleted now: %s", folder, refused)

    def close(self) -> None:
        """Close the journal. The next write opens it again."""
        if self._writer is not None:
            self._closed_at = (self._writer.lines, self._writer.digest)
            self._writer.close()
            self._writer = None

    def _reopened(self) -> TraceWriter:
        """Open a closed journal again. Raises TraceError when it was changed since."""
        writer = TraceWriter(self.path, self._now)
        if self._closed_at not in (None, (writer.lines, writer.digest)):
            writer.close()
            raise TraceError(
                str(self.path), None, "was changed while no run was using it; it will be read again"
            )
        return writer

    def _recent(self) -> list[Path]:
        """Return the full parts with the windows that memory holds, at most ``LOAD_BYTES`` of them but at least one."""
        if not self.path.exists():
            return []
        number, files, size = parts.part_number(self.path), parts.full_parts(self.path.parent), 0
        recent: list[Path] = []
        begins: int | None = None  # unknown where the head of the active part is torn
        with contextlib.suppress(TraceError):
            begins = self.reader.first_window(number) if number > 1 else 0
        while (number := number - 1) in files:
            size += parts.plain_size(files[number])
            if recent and size > LOAD_BYTES:
                break
            recent.append(files[number])
            first = self.reader.first_window(number)
            begins = first if begins is None else begins
            if begins - first >= self._settings.limits.history_windows:
                break
        return recent[::-1]

    def _note_end(self, writer: TraceWriter) -> None:
        self._end = JournalEnd(writer.part, writer.size)


class OpenJournal(Protocol):
    """What ``OpenJournals`` needs of a job."""

    @property
    def is_open(self) -> bool:
        """Whether its journal is open."""
        ...

    @property
    def busy(self) -> bool:
        """Whether it is being changed, so that its journal must stay as it is."""
        ...

    def close(self) -> None:
        """Close its journal; the next write opens it again."""
        ...


class OpenJournals:
    """Closes journals where this process may not open enough files, so that some are left for connections.

    An open journal is locked, and its next line costs no reading. So those close that were written longest ago. It
    lives on the event loop.

    Args:
        requests: Requests at once, each of which may need a file.
    """

    def __init__(self, requests: int) -> None:
        self._reserved = requests + SPARE_FILES
        self._jobs: WeakKeyDictionary[OpenJournal, None] = WeakKeyDictionary()  # written longest ago first

    def used(self, job: OpenJournal) -> None:
        """Note that a job's journal is or will be open, and close others where there are too many."""
        self._jobs.pop(job, None)
        self._jobs[job] = None
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # an operator may change it at any time
        most = max(LEAST_JOURNALS, limit - self._reserved)
        if limit == resource.RLIM_INFINITY or len(self._jobs) <= most:
            return
        others = [one for one in self._jobs if one is not job and not one.busy]
        for one in sorted(others, key=lambda one: one.is_open):  # closed ones first, else in order
            if len(self._jobs) <= most:
                return
            one.close()
            del self._jobs[one]
