"""Reading traces: one line at a time, in bounded memory, with repairs noted and everything else an error."""

import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self, cast

from gravac.protocol import JobSpec
from gravac.traces import parts
from gravac.traces.line import MAX_LINE_BYTES, Line, Recognize, TraceError, decode, split
from gravac.traces.parts import Part

MAX_TRACE_BYTES = 4 << 30
"""Limit on the bytes read from one trace, after decompression: bounds what a hostile ``.gz`` can cost."""

_BOM = b"\xef\xbb\xbf"


class Trace(Iterator[Line]):
    """Iterator over the lines of a trace. Holds one line in memory.

    Use ``read_trace`` to open one.

    Attributes:
        path: What is read, for messages.
        notes: What was repaired (a torn last line, CRLF, a byte order mark) or is missing.
        part: Number of the part that the stream begins with; 1 unless older parts were deleted.
        begins_after: Digest of the line before that part; empty for part 1.
        last_line: Number of the last line read, from 1, counted through all parts.
        digest: Digest of the last line read.
        good_bytes: Length of the whole lines read so far.
        terminated: Whether the last line read ended in a newline.

    Raises:
        TraceError: From ``next`` for anything that cannot be read as a trace line. With ``verify``, also for a line
            that was altered after it was written.
    """

    def __init__(
        self,
        stream: BinaryIO,
        path: str,
        verify: bool,
        max_bytes: int = MAX_TRACE_BYTES,
        *,
        owned: bool = False,
        recognize: Recognize | None = None,
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
        self._verify, self._recognize = verify, recognize
        self._raw = _raw_lines(stream, path, max_bytes, self.notes, owned)

    def __next__(self) -> Line:
        try:
            return self._next()
        except BaseException:  # the end, or an error: nothing is read after it
            self.close()
            raise

    def close(self) -> None:
        """Close the file if ``read_trace`` opened it. Only needed when reading stops before the end."""
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
        line = decode(raw, number, self.digest, self.path, self._verify, self._recognize)
        self.digest = line.digest
        self._check_job(line)
        self.good_bytes += size
        self.terminated = terminated
        return line

    def _note_once(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _begin(self, raw: bytes) -> None:
        """Take over line count and digest where the stream begins with a later part of a journal."""
        head = parts.parse_head(raw)
        if head is not None:
            self.part, self.last_line, self.digest = head
            self.begins_after = self.digest
            self.notes.append(f"begins with part {self.part}: the parts before it are missing")

    def _check_job(self, line: Line) -> None:
        if self._job is None:
            if isinstance(line.record, JobSpec):
                self._job = line.record.job
            elif not isinstance(line.record, Part):
                raise TraceError(
                    self.path, line.number, f"a trace begins with its job, not with {line.kind!r}"
                )
        elif line.kind in ("job", "window") and line.record.job != self._job:  # type: ignore[union-attr]
            got = line.record.job  # type: ignore[union-attr]
            message = f"{line.kind}.job: this is the trace of {self._job!r}, got {got!r}"
            raise TraceError(self.path, line.number, message)


def read_trace(
    source: str | Path | BinaryIO,
    verify: bool = True,
    max_bytes: int = MAX_TRACE_BYTES,
    recognize: Recognize | None = None,
) -> Trace:
    """Open a trace and return an iterator over its lines.

    A torn last line, CRLF line ends and a byte order mark are repaired and listed in ``Trace.notes``.

    Args:
        source: Path of a trace (gzip is detected by its first bytes) or an open binary stream. The path of a journal's
            active part, ``journal.jsonl``, stands for all of its parts.
        verify: Raise TraceError for a line whose digest is wrong. Without it, see ``Line.intact``.
        max_bytes: Limit on the decompressed size.
        recognize: Returns the record of a body that the caller already holds, which saves parsing it.

    Returns:
        An iterator of ``Line``, and a context manager that closes the file.

    Raises:
        TraceError: The file cannot be opened; later, from the iterator, for the first bad line.

    Example::

        with gravac.read_trace("gravac-runs/my-job/journal.jsonl") as trace:
            for line in trace:
                print(line.number, line.kind)
    """
    if not isinstance(source, str | Path):
        name = str(getattr(source, "name", "<stream>"))
        return Trace(source, name, verify, max_bytes, recognize=recognize)
    path = Path(source)
    try:
        stream = parts.open_journal(path) if path.name == parts.ACTIVE else parts.open_part(path)
    except OSError as error:
        raise TraceError(str(path), None, f"cannot be opened: {error.strerror or error}") from None
    except EOFError:
        raise TraceError(str(path), None, "cannot be opened: the compressed stream is empty") from None
    return Trace(stream, str(path), verify, max_bytes, owned=True, recognize=recognize)


def last_job(path: Path) -> JobSpec | None:
    """Return the job as last registered in a journal; None where there is none, or it cannot be read.

    Args:
        path: The journal's active part. The other lines of it are not parsed.
    """
    found: bytes | None = None
    try:
        with parts.open_part(path) as stream:
            for raw in iter(lambda: stream.readline(MAX_LINE_BYTES), b""):
                if raw.startswith(b'{"kind":"job",'):
                    found = raw
        record = None if found is None else decode(found.removesuffix(b"\n"), 1, "", str(path)).record
    except (OSError, EOFError, zlib.error, TraceError):
        return None
    return record if isinstance(record, JobSpec) else None


@contextmanager
def open_lines(trace: str | Path | BinaryIO | Iterable[Line]) -> Iterator[Iterable[Line]]:
    """Context manager for the lines of ``trace``, opened with ``read_trace`` unless they are lines already."""
    if isinstance(trace, str | Path):
        with read_trace(trace) as lines:
            yield lines
    else:
        yield read_trace(cast(BinaryIO, trace)) if hasattr(trace, "readline") else trace


def _raw_lines(
    stream: BinaryIO, path: str, max_bytes: int, notes: list[str], owned: bool
) -> Generator[tuple[bytes, bool], None, None]:
    """Yield lines without their newline, and whether they had one. Closes an owned stream when done or dropped."""
    total = number = 0
    try:
        while True:
            number += 1
            try:
                raw = stream.readline(MAX_LINE_BYTES + 1)
            except EOFError:
                notes.append(f"the compressed stream ends early, in line {number}: the rest is left out")
                return
            except (OSError, zlib.error) as error:
                raise TraceError(path, number, f"cannot be read: {error}") from None
            total += len(raw)
            if not raw:
                return
            if len(raw) > MAX_LINE_BYTES:
                raise TraceError(path, number, f"is longer than {MAX_LINE_BYTES} bytes")
            if total > max_bytes:
                raise TraceError(path, number, f"the trace is longer than {max_bytes} bytes")
            yield raw.removesuffix(b"\n"), raw.endswith(b"\n")
    finally:
        if owned:
            stream.close()
