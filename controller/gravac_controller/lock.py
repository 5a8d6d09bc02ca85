"""One controller per data folder: a lock that the kernel releases when its holder dies, and a note of its address."""

import contextlib
import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Self

from gravac.traces.own_files import PRIVATE_FILE, create_own, make_folder, open_own

LOCK_NAME = ".controller.lock"
CONTROL_TOKEN_NAME = ".controller.control-token"
"""File with the control token for the owner of the folder (``owner_may_steer``)."""


class DataDirError(Exception):
    """The data folder cannot be used; the message says why and what to do."""


class DataDirInUse(DataDirError):
    """Another controller holds the folder; the message names its process and, if known, its address."""


class DataDirLock:
    """Holds the folder from ``acquire`` to ``release``. Creates the folder if it is missing."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / LOCK_NAME
        self._fd: int | None = None

    def acquire(self) -> Self:
        """Take the lock. Raises DataDirInUse when another process holds it, DataDirError where that fails."""
        try:
            make_folder(self.path.parent)
            fd = open_own(self.path, os.O_RDWR, 0o644)  # others who share the folder read the address
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
        self._remove_token()  # of a controller that was killed
        return self

    def note(self, **facts: str) -> None:
        """Write our pid and these facts into the lock file, for processes that look for a running controller."""
        if self._fd is not None:
            line = json.dumps({"pid": os.getpid(), **facts}) + "\n"
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, line.encode(), 0)

    def leave_token(self, token: str) -> None:
        """Write the control token to a file that only the folder's owner can read, until ``release``.

        Raises DataDirError where the file system cannot keep it private.
        """
        path = self.path.with_name(CONTROL_TOKEN_NAME)
        try:
            fd = create_own(path)
            try:
                os.fchmod(fd, PRIVATE_FILE)
                private = stat.S_IMODE(os.fstat(fd).st_mode) == PRIVATE_FILE
                if private:
                    os.write(fd, token.encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise DataDirError(f"cannot write {path}: {error.strerror}") from error
        if not private:
            self._remove_token()
            raise DataDirError(
                f"{path} cannot be made private on this file system: start without --owner-may-steer and give "
                "a --control-token-file"
            )

    def release(self) -> None:
        """Release the folder. The lock file stays, because removing it would race with the next controller."""
        if self._fd is not None:
            self._remove_token()
            os.close(self._fd)
            self._fd = None

    def _remove_token(self) -> None:
        with contextlib.suppress(OSError):
            self.path.with_name(CONTROL_TOKEN_NAME).unlink()


def control_token_in(folder: Path) -> str | None:
    """Return the control token of this folder's controller; None unless we own the folder.

    The file must belong to us and be readable by us alone, or someone else could have put it there.
    """
    try:
        fd = os.open(folder / CONTROL_TOKEN_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and found.st_nlink == 1
        if not ours or found.st_mode & 0o077:
            return None
        return os.read(fd, 4096).decode("ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
    finally:
        os.close(fd)


def being_written(journal: Path) -> bool:
    """Return whether a process has the journal open for writing: a controller, or an agent that decides in process."""
    try:
        fd = os.open(journal, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _holder(path: Path) -> str:
    """Return the pid and address in the note, as far as the holder has written them."""
    note = read_note(path) or {}
    pid, url = note.get("pid", "unknown"), note.get("url")
    return f"pid {pid}" + (f" at {url}" if isinstance(url, str) else "")


def read_note(path: Path) -> dict[str, object] | None:
    """Return the note of the last holder of a lock, None if it is invalid. The holder may be dead: ask it."""
    try:
        found = json.loads(path.read_bytes()[:4096])
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
