"""Trace files: reading them with bounds, and the one writer of a journal."""

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Self

from gravac.protocol import Event, JobSpec
from gravac.traces import parts
from gravac.traces.inplace import in_place, restored
from gravac.traces.line import Known, Line, TraceError, TraceRecord, decode, encode, kind_of, split
from gravac.traces.parts import Part
from gravac.traces.rawlines import raw_lines

__all__ = ["Line", "Trace", "TraceError", "TraceRecord", "TraceWriter", "encode", "read"]

MAX_TRACE_BYTES = 4 << 30
"""Most bytes read from one trace, after decompression: a bound on what a hostile ``.gz`` can cost."""

_RESTORED = "The journal's file was deleted while it was being written; nothing is lost, it was written back."
_BOM = b"\xef\xbb\xbf"


class Trace(Iterator[Line]):
    """The lines of a trace, one at a time, in memory bounded by one line.

    ``notes`` says what was repaired (a torn last line, CRLF, a byte order mark) or is missing. ``part`` is the one it
    begins with, ``begins_after`` the digest of the line before that. ``last_line``, counted through
    all parts, and ``digest`` are of the last line read; ``good_bytes`` is the length of the whole lines. Raises
    TraceError for anything else, and with ``verify`` also for a line that was altered after it was written.
    """

    def __init__(
        self,
        stream: BinaryIO,
        path: str,
        verify: bool,
        max_bytes: int = MAX_TRACE_BYTES,
        *,
        owned: bool = False,
        known: Known | None = None,
    ) -> None:
        self.path = path
        self.notes: list[str] = []
        self.last_line = 0
        self.digest = ""
        self.good_bytes = 0
        self.terminated = True
        self.part, self.begins_after = 1, ""
        self._job: str | None = None
        self._fresh = True
        self._verify, self._known = verify, known
        self._raw = raw_lines(stream, path, max_bytes, self.notes, owned)

    def __next__(self) -> Line:
        try:
            return self._next()
        except BaseException:  # the end, or an error: nothing is read after it
            self.close()
            raise

    def close(self) -> None:
        """Close the file, if ``read`` opened it. Only needed by who stops before the end."""
        self._raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> Line:
        raw, terminated = next(self._raw)
        if self._fresh:
            self._begin(raw)
        number = self.last_line + 1
        if not terminated and split(raw) is None:
            self.notes.append(f"line {number} is torn ({len(raw)} bytes without an end): left out")
            raise StopIteration
        size = len(raw) + terminated
        if self._fresh and raw.startswith(_BOM):
            raw = raw[len(_BOM) :]
            self.notes.append("began with a byte order mark: ignored")
        self._fresh = False
        if raw.endswith(b"\r"):
            raw = raw[:-1]
            self._note_once("has CRLF line ends: ignored")
        self.last_line = number
        line = decode(raw, number, self.digest, self.path, self._verify, self._known)
        self.digest = line.digest
        self._check_job(line)
        self.good_bytes += size
        self.terminated = terminated
        return line

    def _note_once(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _begin(self, raw: bytes) -> None:
        """A later part of a journal goes on with the numbers and the chain of the parts before it."""
        head = parts.head_of(raw)
        if head is not None:
            self.part, self.last_line, self.digest = head
            self.begins_after = self.digest
            self.notes.append(f"begins with part {self.part}: what was before it is not here")

    def _check_job(self, line: Line) -> None:
        if self._job is None:
            if isinstance(line.record, JobSpec):
                self._job = line.record.job
            elif not isinstance(line.record, Part):
                raise TraceError(
                    self.path, line.number, f"a trace begins with its job, this with a {line.kind}"
                )
        elif line.kind in ("job", "window") and line.record.job != self._job:  # type: ignore[union-attr]
            got = line.record.job  # type: ignore[union-attr]
            message = f"{line.kind}.job: this is the trace of {self._job!r}, got {got!r}"
            raise TraceError(self.path, line.number, message)


def read(
    source: str | Path | BinaryIO,
    verify: bool = True,
    max_bytes: int = MAX_TRACE_BYTES,
    known: Known | None = None,
) -> Trace:
    """Read a trace line by line, from a path (gzip is known by its first bytes) or an open binary stream.

    Of a journal in parts, its active part's path stands for all of it. ``known`` spares parsing what
    the caller has already.

    Raises TraceError when it cannot be opened, and later for the first bad line.
    """
    if not isinstance(source, str | Path):
        return Trace(source, str(getattr(source, "name", "<stream>")), verify, max_bytes, known=known)
    path = Path(source)
    try:
        stream = parts.whole(path) if path.name == parts.ACTIVE else parts.opened(path)
    except OSError as error:
        raise TraceError(str(path), None, f"cannot be opened: {error.strerror or error}") from None
    except EOFError:
        raise TraceError(str(path), None, "cannot be opened: the compressed stream is empty") from None
    return Trace(stream, str(path), verify, max_bytes, owned=True, known=known)


class TraceWriter:
    """The one writer of a journal: appends, seals and syncs lines; opens an existing journal where it ended.

    Opening takes an exclusive lock, reads every line (each is given to ``visit``, to fold), cuts off a torn
    tail, and goes on with the chain. ``notes`` says what was repaired. Folder 0700, file 0600. Raises TraceError
    when another process writes it, when it is damaged, or when the folder cannot be used.
    """

    def __init__(
        self, path: str | Path, now: Callable[[], float], visit: Callable[[Line], object] | None = None
    ) -> None:
        self.path = Path(path)
        self.notes: tuple[str, ...] = ()
        self.part, self.lines, self.size, self.digest, self.begins_after = 1, 0, 0, "", ""
        self._now = now
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            parts.repair(self.path)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise TraceError(str(path), None, f"cannot be opened for writing: {error.strerror}") from None
        try:
            self._lock()
            self._recover(visit)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, *records: TraceRecord) -> tuple[Line, ...]:
        """Write the records as one piece and sync; all of them are in the journal on return, or none.

        A file that was deleted meanwhile is written back first, and a note says so. Raises OSError when the disk
        refuses (the journal stays as it was), ``inplace.Displaced`` when another file is in its place, ValueError for a
        huge record.
        """
        if not self.check():
            records = (Event(kind="note", window=None, message=_RESTORED), *records)
        data, lines = self._encoded(records, self._now())
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
            os.fsync(self._file)
        except OSError:
            self._cut(self.size)
            raise
        self.digest = lines[-1].digest if lines else self.digest
        self.size, self.lines = self.size + len(data), self.lines + len(lines)
        return lines

    def check(self) -> bool:
        """Whether the file at the path is the one that is open; False when it was deleted, and has been written back.

        Raises OSError when it cannot be, ``inplace.Displaced`` when it was replaced or changed.
        """
        if in_place(self._file, self.path, self.size):
            return True
        fresh = restored(self._file, self.path)
        os.close(self._file)
        self._file = fresh
        return False

    def turn(self, *records: TraceRecord, summary: str) -> tuple[Line, ...]:
        """Close this part and go on in the next, which begins with ``records``; returns its lines.

        ``records`` must be what a reader of the next part alone needs: the job and the decision in force. A crash at
        any moment leaves either this part as it was or the next one begun (``parts.repair``). Raises OSError and
        ValueError: then this part goes on.
        """
        self.check()
        fresh, time = parts.next_path(self.path), self._now()
        part = Part(number=self.part + 1, lines=self.lines, digest=self.digest, summary=summary)
        data, lines = self._encoded((part, *records), time)
        away = parts.closed_path(self.path.parent, self.part)
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(os.dup(file), "wb") as stream:
                stream.write(data)
            os.fsync(file)
            self.path.rename(away)
            parts.sync_folder(self.path.parent)
            fresh.rename(self.path)
            parts.sync_folder(self.path.parent)
        except BaseException:
            os.close(file)
            parts.repair(self.path)
            raise
        os.close(self._file)
        self._file, self.part, self.begins_after = file, part.number, part.digest
        self.lines, self.size, self.digest = self.lines + len(lines), len(data), lines[-1].digest
        return lines

    def close(self) -> None:
        """Close the file, which frees the lock. Twice is harmless."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encoded(self, records: tuple[TraceRecord, ...], time: float) -> tuple[bytes, tuple[Line, ...]]:
        """The records as the next lines."""
        pieces, lines, digest = [], [], self.digest
        for number, record in enumerate(records, self.lines + 1):
            raw, digest = encode(record, time, digest)
            pieces.append(raw)
            lines.append(Line(number, kind_of(record), time, record, digest, digest))
        return b"".join(pieces), tuple(lines)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = "another controller is writing it; stop that one, or give this one another folder"
            raise TraceError(str(self.path), None, message) from None

    def _recover(self, visit: Callable[[Line], object] | None) -> None:
        with open(os.dup(self._file), "rb") as stream:
            trace = Trace(stream, str(self.path), verify=True)
            for line in trace:
                if visit is not None:
                    visit(line)
        self.notes, self.part, self.begins_after = tuple(trace.notes), trace.part, trace.begins_after
        self.digest, self.lines, self.size = trace.digest, trace.last_line, trace.good_bytes
        self._cut(self.size)
        if not trace.terminated:
            os.write(self._file, b"\n")
            self.size += 1

    def _cut(self, size: int) -> None:
        os.ftruncate(self._file, size)
        os.lseek(self._file, size, os.SEEK_SET)
