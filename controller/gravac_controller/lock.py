"""One controller per data folder: a lock that the kernel drops when its holder dies."""

import fcntl
import os
from pathlib import Path
from typing import Self

LOCK_NAME = ".controller.lock"


class DataDirError(Exception):
    """The data folder cannot be used; the message says why and what to do."""


class DataDirLock:
    """Holds the folder from ``acquire`` to ``release``. Creates the folder if it is missing."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / LOCK_NAME
        self._fd: int | None = None

    def acquire(self) -> Self:
        """Take the lock, or raise DataDirError (naming the other controller's pid when it is taken)."""
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
            pid = os.read(fd, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise DataDirError(
                f"the data folder {self.path.parent} is in use by another controller (pid {pid}); use that one, "
                "stop it, or give another folder with --data-dir"
            ) from None
        except OSError as error:
            os.close(fd)
            raise DataDirError(f"cannot lock {self.path}: {error.strerror}") from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd
        return self

    def release(self) -> None:
        """Give the folder back; the file stays, since removing it would race with the next controller."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
