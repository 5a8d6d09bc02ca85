"""Network namespaces: calls ``ip`` and ``tc``, and removes what killed runs left behind."""

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

_NETWORK = 0x40000000
"""CLONE_NEWNET of Linux: a network namespace."""
_OURS = re.compile(r"gravac-(\d+)-")


class NetworkUnavailable(Exception):
    """Networks cannot be created on this machine. The message says why."""


def obstacle() -> str | None:
    """Why no network can be created here, as far as known without trying; None: no reason found."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"the command {tool} is missing (Debian: apt-get install iproute2)"
    if os.geteuid() != 0:
        return "creating network namespaces needs root"
    return None


def call(*words: str) -> str:
    """Run ``ip …`` or ``tc …`` and return its output. Raises NetworkUnavailable with its error message."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NetworkUnavailable(f"{words[0]}: {error.strerror}") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"code {done.returncode}"
        raise NetworkUnavailable(f"`{' '.join(words)}` failed: {said}")
    return done.stdout


def name(pid: int, serial: int, part: str) -> str:
    """Name of one namespace of the ``serial``-th network of process ``pid``."""
    return f"gravac-{pid}-{serial}-{part}"


def present() -> list[str]:
    """All named namespaces of this machine."""
    return [line.split()[0] for line in call("ip", "netns", "list").splitlines() if line.strip()]


def enter(namespace: str) -> None:
    """Let this thread, and those that it starts, use the network of a namespace. Raises OSError."""
    with Path("/run/netns", namespace).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {namespace}")


def remove(namespace: str) -> None:
    """Delete a namespace with its interfaces, if it exists."""
    try:
        call("ip", "netns", "delete", namespace)
    except NetworkUnavailable:
        if namespace in present():
            raise


def remove_stale() -> list[str]:
    """Delete the namespaces of killed runs: those with our prefix whose process is dead."""
    stale = [each for each in present() if (match := _OURS.match(each)) and not _alive(int(match[1]))]
    for namespace in stale:
        remove(namespace)
    return stale


def _alive(pid: int) -> bool:
    """Whether a process is alive. A zombie is dead: in many containers it stays in the table of processes."""
    try:
        status = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")
