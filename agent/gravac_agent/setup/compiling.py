"""Compiles kernels at the start: one rank of a machine does, and the others wait for what it keeps, in bounded time."""

import contextlib
import fcntl
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from gravac import kernels
from gravac.kernels import backend

log = logging.getLogger("gravac.agent")

_COMPILE = "from gravac.kernels.cpu import load; load.main()"
_PAUSE_SECONDS = 0.02


def warm(device: torch.device, seconds: float) -> None:
    """Load the kernels; the first time on a machine, compiling takes seconds.

    Their backend is the one that ``kernels.use`` has chosen, else that of ``GRAVAC_KERNELS``.

    Args:
        device: Device on which the gradients are.
        seconds: Longest wait for another rank that compiles.

    Raises:
        ValueError: ``GRAVAC_KERNELS`` names no backend.
        ImportError: The backend cannot be loaded.
    """
    backend.compile_by(partial(compile_elsewhere, seconds))
    with contextlib.ExitStack() as turn:
        if backend.gpu_kernels(device):  # those of the host have a lock of their own
            turn.enter_context(in_turn(_triton_folder() / "gravac.lock", seconds))
        kernels.warm()


def compile_elsewhere(seconds: float) -> bytes:
    """Compile the host's kernels in a process that ends: a compiler stays in the memory of the process that used it.

    Of several ranks on a machine one compiles, and the others wait for it, but no longer than ``seconds``.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0":
        log.warning("compiling kernels for this processor, once on a machine: it takes a core about 15 s")
    path = os.pathsep.join(place or os.getcwd() for place in sys.path)
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace")[-1000:])
    return done.stdout


@contextlib.contextmanager
def in_turn(path: Path, seconds: float) -> Iterator[None]:
    """Wait while another process is the first in here, but no longer than ``seconds``. Those that waited go on at once.

    Args:
        path: A file that all of them can lock. Without a folder that can be written nobody waits.
        seconds: See there.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = held.enter_context(path.open("wb"))
            if not _locked(file.fileno()):
                until = time.monotonic() + seconds
                while not _locked(file.fileno()) and time.monotonic() < until:
                    time.sleep(_PAUSE_SECONDS)
                # Where the first could not keep what it made, the others compile at once, not in turn.
                held.close()
        yield


def _locked(file: int) -> bool:
    """Lock a file if no other process has. Return whether it did."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _triton_folder() -> Path:
    """Return where Triton keeps what it compiled."""
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    return Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")
