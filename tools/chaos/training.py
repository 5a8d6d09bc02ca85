"""A training from outside: two ranks forked from a process that has imported torch, watched, stopped and killed."""

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tools.chaos.life import Life, run

START_SECONDS = 120.0
"""Until the first step, on a machine with other work to do."""
END_SECONDS = 60.0
"""Until all ranks have ended: far longer than what the checks allow."""

CONTEXT = multiprocessing.get_context("forkserver")


def prepare() -> None:
    """Start the process that ranks are forked from."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # every process would compile all of torch that it imports
    CONTEXT.set_forkserver_preload(["tools.chaos.rank"])


@dataclass
class Remains:
    """What is left of a life, for the checks: its files, and how it ended.

    Attributes:
        life: where its files are.
        outcome: None while it runs, then finished, killed, or what went wrong.
        killed: the rank that was killed.
        fresh_controller: whether a controller had to be started while it closed.
        cfs: all that rank 0 sent at.
    """

    life: Life
    outcome: str | None = None
    killed: int | None = None
    fresh_controller: bool = False
    cfs: set[float] = field(default_factory=set)

    def notes(self, rank: int) -> list[dict[str, Any]]:
        """What the rank wrote down."""
        return lines(self.life.file(rank, "notes"))

    def log(self, rank: int = 0) -> str:
        path = self.life.file(rank, "log")
        return path.read_text(errors="replace") if path.exists() else ""


class Training(Remains):
    """One life, from its start."""

    def __init__(self, life: Life) -> None:
        super().__init__(life)
        self.status: dict[str, Any] = {}
        self._orders, theirs = CONTEXT.Pipe()
        self.processes = [
            CONTEXT.Process(target=run, args=(life, rank, None if rank else theirs), daemon=True)
            for rank in range(life.world)
        ]
        for process in self.processes:
            process.start()
        theirs.close()
        threading.Thread(target=self._listen, args=(self._orders,), daemon=True).start()

    @property
    def pid(self) -> int:
        """Of rank 0."""
        return self.processes[0].pid or 0

    @property
    def running(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def wait_started(self) -> bool:
        """Wait until a step is done; False when it ended or hung before."""
        until = time.monotonic() + START_SECONDS
        while not self.status and self.running and time.monotonic() < until:
            time.sleep(0.01)
        return bool(self.status)

    def kill(self, rank: int) -> None:
        """SIGKILL one rank; the other ends by itself."""
        self.killed = rank
        os.kill(self.processes[rank].pid or 0, signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end in order."""
        with contextlib.suppress(OSError):
            self._orders.send("stop")

    def join(self) -> None:
        """Wait for its end; kill what hangs."""
        until = time.monotonic() + END_SECONDS
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
        hung = [rank for rank, process in enumerate(self.processes) if process.is_alive()]
        for rank in hung:
            self.processes[rank].kill()
            self.processes[rank].join()
        self._orders.close()
        codes = [process.exitcode for process in self.processes]
        if hung:
            self.outcome = f"hung: ranks {hung} after {END_SECONDS:g} s"
        elif self.killed is not None:
            self.outcome = "killed"
        else:
            self.outcome = "finished" if codes == [0, 0] else f"failed: exit codes {codes}"

    def _listen(self, orders: Connection) -> None:
        try:
            while True:
                self.status = status = orders.recv()
                self.cfs.add(status["cf"])
        except (OSError, EOFError, TypeError):
            return


def lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines of a file."""
    return [json.loads(line) for line in whole_lines(path)]


def whole_lines(path: Path) -> list[str]:
    """Lines of a file that may not be there; the last one may be torn, where its writer was killed."""
    text = path.read_text() if path.exists() else ""
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
