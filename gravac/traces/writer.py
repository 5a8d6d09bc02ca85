"""Writing a journal: the only writer appends, seals and syncs lines, and notices when its file was moved away."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Self

from gravac.protocol import Event
from gravac.traces import parts
from gravac.traces.line import Line, TraceError, TraceRecord, encode, kind_of
from gravac.traces.own_files import create_own, make_folder, open_own
from gravac.traces.parts import Part
from gravac.traces.reader import Trace

_RESTORED = "The journal's file was deleted while it was being written. It was written back; nothing is lost."


class Displaced(OSError):
    """The journal file is not as its writer left it. Only a person can say which copy counts."""


class TraceWriter:
    """Appends to a journal. Only one process at a time can open a journal for writing.

    Opening it takes an exclusive lock, reads every line, cuts off a torn tail, and continues the chain of digests. The
    folder is created with mode 0700, the file with 0600.

    Args:
        path: The journal's active part.
        now: Returns the Unix time in seconds that lines are stamped with.
        visit: Called with each line that is already there.

    Attributes:
        path: Path as it was given.
        notes: What was repaired on opening.
        part: Number of the part being written, from 1.
        lines: Lines in all parts.
        size: Bytes of the part being written.
        digest: Digest of the last line.
        begins_after: Digest of the line before the part being written; empty for part 1.

    Raises:
        TraceError: Another process writes the journal, it is damaged, or the folder cannot be used.
    """

    def __init__(
        self, path: str | Path, now: Callable[[], float], visit: Callable[[Line], object] | None = None
    ) -> None:
        self.path = Path(path)
        self.notes: tuple[str, ...] = ()
        self.part, self.lines, self.size, self.digest, self.begins_after = 1, 0, 0, "", ""
        self._now = now
        try:
            make_folder(self.path.parent)
            parts.repair(self.path)
            self._file = open_own(self.path, os.O_RDWR)
        except OSError as error:
            raise TraceError(str(path), None, f"cannot be opened for writing: {error.strerror}") from None
        try:
            self._lock()
            self._recover(visit)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, *records: TraceRecord) -> tuple[Line, ...]:
        """Write the records in one piece and sync. On return all of them are in the journal.

        A file that was deleted meanwhile is written back first, and an event says so.

        Returns:
            The lines written.

        Raises:
            OSError: The disk refused; the journal stays as it was. ``Displaced`` when another file is in its place.
            ValueError: A record is too large for one line.
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
        """Return whether the open file is still the one at its path. A deleted file is written back: False then.

        Raises:
            OSError: It cannot be written back. ``Displaced`` when it was replaced or changed.
        """
        if _in_place(self._file, self.path, self.size):
            return True
        fresh = _write_back(self._file, self.path)
        os.close(self._file)
        self._file = fresh
        return False

    def begin_part(self, *records: TraceRecord, summary: str) -> tuple[Line, ...]:
        """Close this part and continue in the next one.

        A crash at any moment leaves either this part as it was or the next one begun (see ``parts.repair``).

        Args:
            records: What a reader of the next part alone needs: the job and the decision in force.
            summary: Sums over the parts so far, as JSON, for people.

        Returns:
            The first lines of the new part.

        Raises:
            OSError: The disk refused; this part goes on.
            ValueError: A record is too large for one line; this part goes on.
        """
        self.check()
        fresh, time = parts.next_path(self.path), self._now()
        part = Part(number=self.part + 1, lines=self.lines, digest=self.digest, summary=summary)
        data, lines = self._encoded((part, *records), time)
        full = parts.full_part_path(self.path.parent, self.part)
        file = create_own(fresh)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(os.dup(file), "wb") as stream:
                stream.write(data)
            os.fsync(file)
            self.path.rename(full)
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
        """Close the file, which releases the lock. Closing twice is harmless."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encoded(self, records: tuple[TraceRecord, ...], time: float) -> tuple[bytes, tuple[Line, ...]]:
        """Return the records as the next lines."""
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


def _in_place(file: int, path: Path, size: int) -> bool:
    """Return whether ``path`` names the open ``file`` of ``size`` bytes; False when no file has that name.

    What is written to a deleted file is lost when its process ends, so the writer checks before each write.

    Raises:
        Displaced: ``path`` names another file, or this one was changed; the message says what to do.
    """
    held = os.fstat(file)
    if held.st_size != size:
        raise Displaced(
            f"{path}: another program changed it, from {size} to {held.st_size} bytes; put a whole copy in its place "
            "and restart the controller, or restart it to go on from what is left"
        )
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    if (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
        raise Displaced(
            f"{path}: another file took its place; move that one away and the controller writes its own back, or "
            "restart the controller to go on from that one"
        )
    return True


def _write_back(file: int, path: Path) -> int:
    """Write a deleted file back to its path; return the new one, open at its end and locked. Raises OSError."""
    make_folder(path.parent)
    fresh = parts.next_path(path)
    copy = create_own(fresh)
    try:
        fcntl.flock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.lseek(file, 0, os.SEEK_SET)
        with open(os.dup(file), "rb") as source, open(os.dup(copy), "wb") as target:
            shutil.copyfileobj(source, target, 1 << 18)
        os.fsync(copy)
        fresh.rename(path)
        parts.sync_folder(path.parent)
    except BaseException:
        os.close(copy)
        raise
    return copy
