"""A locked file with a note of who holds it. The kernel releases the lock when its holder dies."""

import fcntl
import json
import os
from pathlib import Path
from typing import ClassVar, Self

from gravac.traces.own_files import PRIVATE_FILE, make_folder, open_own

MAX_NOTE_BYTES = 4096


class LockHeld(Exception):
    """Another process, or another part of this one, holds the lock.

    Attributes:
        ours: Whether this process holds it.
        note: What the holder has written into the file; empty where that cannot be read.
    """

    def __init__(self, ours: bool, note: dict[str, object]) -> None:
        super().__init__("the lock is held")
        self.ours, self.note = ours, note


class FileLock:
    """Exclusive lock on a file, from ``take`` to ``release``.

    It is a record lock, not flock: a data loader's worker, forked from the trainer, must not hold it after the trainer
    died.
    """

    _descriptors: ClassVar[dict[Path, int]] = {}
    """The locks of this process. Record locks do not exclude threads of one process, and closing any descriptor of
    the file would release its lock."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor

    @classmethod
    def take(cls, path: Path, mode: int = PRIVATE_FILE) -> Self:
        """Lock the file. It and its folder are created where they are missing.

        Raises:
            LockHeld: Somebody holds the lock.
            OSError: The file cannot be written or locked, or is a link or no file of its own.
        """
        path = _place(path)
        if path in cls._descriptors:
            raise LockHeld(True, read_note(path) or {})
        make_folder(path.parent)
        descriptor = open_own(path, os.O_RDWR, mode)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise LockHeld(False, read_note(path) or {}) from None
        except BaseException:
            os.close(descriptor)
            raise
        cls._descriptors[path] = descriptor
        return cls(path, descriptor)

    def write_note(self, **facts: object) -> None:
        """Write our pid and these facts into the file. Raises OSError where the disk refuses."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps({"pid": os.getpid(), **facts}).encode() + b"\n", 0)

    def release(self) -> None:
        """Release the lock; safe to repeat. The file stays, since removing it would race with the next holder."""
        if self._descriptor >= 0:
            del self._descriptors[self._path]
            os.close(self._descriptor)
            self._descriptor = -1


def read_note(path: Path) -> dict[str, object] | None:
    """Return the note of the last holder of a lock, None if it is invalid. The holder may be dead: ask it."""
    try:
        descriptor = FileLock._descriptors.get(_place(path))
        if descriptor is not None:
            text = os.pread(descriptor, MAX_NOTE_BYTES, 0)
        else:
            with path.open("rb") as file:
                text = file.read(MAX_NOTE_BYTES)
        found = json.loads(text)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _place(path: Path) -> Path:
    """Return one name of the file, however its folder was named. The file itself is no link (``open_own``)."""
    return path.parent.resolve() / path.name
