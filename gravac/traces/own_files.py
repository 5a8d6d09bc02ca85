"""Opens files for writing where others may create files too: never through a link, and private from the start."""

import errno
import os
import stat
from pathlib import Path

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def open_own(path: Path, flags: int, mode: int = PRIVATE_FILE) -> int:
    """Open a file for writing, which is created if it is missing, and return its descriptor.

    Raises:
        OSError: It is a link, has other names or is no file: then writing could change something else.
    """
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe or socket
            raise _not_own(path) from None
        raise
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(fd)
        raise _not_own(path)
    return fd


def create_own(path: Path) -> int:
    """Create an empty file in place of a leftover of that name, and return its descriptor. Raises OSError."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, where they are missing. Only their owner may enter them. Raises OSError."""
    if path.parent != path and not path.parent.is_dir():
        make_folder(path.parent)
    path.mkdir(PRIVATE_FOLDER, exist_ok=True)


def _not_own(path: Path) -> OSError:
    what = f"{path.name} is a link or no file of its own, so writing it could change another file: remove it"
    return OSError(errno.ELOOP, what, str(path))
