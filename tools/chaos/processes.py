"""Processes of controllers: found by their parent or their folder, asked for their token, sent signals."""

import contextlib
import os
from pathlib import Path


def children(parent: int) -> list[int]:
    """Controllers that this process started and that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                after = (entry / "stat").read_text().rpartition(")")[2].split()
                ours = int(after[1]) == parent and after[0] != "Z"
                if ours and b"gravac_controller" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def of_folder(folder: Path) -> list[int]:
    """Controllers of that folder that still run, whoever started them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()  # empty once it has ended
                if b"gravac_controller" in command and str(folder).encode() in command:
                    found.append(int(entry.name))
    return found


def token_of(pid: int) -> str | None:
    """The token in a process's environment."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == b"GRAVAC_TOKEN":
                return value.decode()
    return None


def send(pid: int | None, number: int) -> bool:
    """A signal; False when there is no such process."""
    if pid is None:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
