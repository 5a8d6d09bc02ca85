"""One controller per data folder: a lock that the kernel drops when its holder dies, and a note of where it answers."""

import fcntl
import json
import os
from pathlib import Path
from typing import Self

LOCK_NAME = ".controller.lock"


class DataDirError(Exception):
    """The data folder cannot be used; the message says why and what to do."""


class DataDirInUse(DataDirError):
    """Another controller holds the folder; the message names its process and, once it answers, its address."""


class DataDirLock:
    """Holds the folder from ``acquire`` to ``release``. Creates the folder if it is missing."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / LOCK_NAME
        self._fd: int | None = None

    def acquire(self) -> Self:
        """Take the lock. Raises DataDirInUse when it is taken, DataDirError when the folder cannot be used."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            folder = self.path.parent
            raise DataDirError(
                f"cannot write in the data folder {folder}: {error.strerror}; give another with --data-dir"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise DataDirInUse(
                f"the data folder {self.path.parent} is in use by another controller ({_holder(self.path)}); use that "
                "one, stop it, or give another folder with --data-dir"
            ) from None
        except OSError as error:
            os.close(fd)
            raise DataDirError(f"cannot lock {self.path}: {error.strerror}") from error
        self._fd = fd
        self.note()
        return self

    def note(self, **facts: str) -> None:
        """Write down our pid and these facts, for those who look for a running controller."""
        if self._fd is not None:
            line = json.dumps({"pid": os.getpid(), **facts}) + "\n"
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, line.encode(), 0)

    def release(self) -> None:
        """Give the folder back; the file stays, since removing it would race with the next controller."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _holder(path: Path) -> str:
    """The pid and address in the note; its holder may not have written them yet."""
    note = read_note(path) or {}
    pid, url = note.get("pid", "unknown"), note.get("url")
    return f"pid {pid}" + (f" at {url}" if isinstance(url, str) else "")


def read_note(path: Path) -> dict[str, object] | None:
    """What the last holder of a lock wrote down; null for anything else. It may be dead: ask it."""
    try:
        found = json.loads(path.read_bytes()[:4096])
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
