"""One controller per data folder: a lock that the kernel releases when its holder dies, and a note of its address."""

import contextlib
import fcntl
import os
import stat
from pathlib import Path
from typing import Self

from gravac.traces.file_lock import FileLock, LockHeld
from gravac.traces.own_files import PRIVATE_FILE, create_own, make_folder

LOCK_NAME = ".controller.lock"
CONTROL_TOKEN_NAME = ".controller.control-token"
"""File with the control token for the owner of the folder (``owner_may_steer``)."""

PROBE_NAME = ".controller.probe"
"""File that shows whether the disk takes another one."""
PROBE_BYTES = 1 << 16
"""More than a window of a small job takes in its journal."""


class DataDirError(Exception):
    """The data folder cannot be used; the message says why and what to do."""


class DataDirInUse(DataDirError):
    """Another controller holds the folder; the message names its process and, if known, its address."""


class DataDirLock:
    """Holds the folder from ``acquire`` to ``release``. Creates the folder if it is missing."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / LOCK_NAME
        self._lock: FileLock | None = None

    def acquire(self) -> Self:
        """Take the lock. Raises DataDirInUse when another process holds it, DataDirError where that fails."""
        folder = self.path.parent
        try:
            self._lock = FileLock.take(self.path, 0o644)  # others who share the folder read the address
        except LockHeld as error:
            pid, url = error.note.get("pid", "unknown"), error.note.get("url")
            raise DataDirInUse(
                f"the data folder {folder} is in use by another controller (pid {pid}"
                f"{f' at {url}' if isinstance(url, str) else ''}); use that one, stop it, or give another folder with "
                "--data-dir"
            ) from None
        except OSError as error:
            raise DataDirError(
                f"cannot write in the data folder {folder}: {error.strerror}; give another with --data-dir"
            ) from error
        self.note()
        self._remove_token()  # of a controller that was killed
        return self

    def note(self, **facts: str) -> None:
        """Write our pid and these facts into the lock file, for processes that look for a running controller."""
        if self._lock is not None:
            self._lock.write_note(**facts)

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

    def check_writable(self) -> None:
        """Write a file next to the lock, and delete it; only while held: a replay writes nothing.

        Raises OSError where the disk is full or refuses.
        """
        if self._lock is None:
            return
        path = self.path.with_name(PROBE_NAME)
        make_folder(path.parent)
        try:
            with open(create_own(path), "wb") as file:
                file.write(bytes(PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            path.unlink(missing_ok=True)

    def release(self) -> None:
        """Release the folder."""
        if self._lock is not None:
            self._remove_token()
            self._lock.release()
            self._lock = None

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
