"""Whether an open journal is still the file at its path: others may delete, replace or change it meanwhile.

What is written to a deleted file is gone with the process that has it open, so a writer looks before each line.
"""

import fcntl
import os
import shutil
from pathlib import Path

from gravac.traces.parts import next_path, sync_folder


class Displaced(OSError):
    """The journal is not as its writer left it, and only a person can say which one counts."""


def in_place(file: int, path: Path, size: int) -> bool:
    """Whether ``path`` names the open ``file`` of ``size`` bytes; False when nothing has that name any more.

    Raises Displaced when it names another file, or when this one was changed; the message says what to do.
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


def restored(file: int, path: Path) -> int:
    """Write a deleted file back to its path; returns the new one, open at its end and locked. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = next_path(path)
    copy = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.lseek(file, 0, os.SEEK_SET)
        with open(os.dup(file), "rb") as source, open(os.dup(copy), "wb") as target:
            shutil.copyfileobj(source, target, 1 << 18)
        os.fsync(copy)
        fresh.rename(path)
        sync_folder(path.parent)
    except BaseException:
        os.close(copy)
        raise
    return copy
