"""A training seen from outside: its ranks, forked from a process that has imported torch, are watched and ended."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from tools.chaos.launch import Launch, TrainingRecord

START_SECONDS = 120.0
"""Until the first step, on a busy machine."""
END_SECONDS = 60.0
"""Until all ranks have ended; much longer than the checks allow."""

CONTEXT = multiprocessing.get_context("forkserver")


def prepare() -> None:
    """Start the process that ranks are forked from."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # every process would compile all of torch that it imports
    CONTEXT.set_forkserver_preload(["tools.chaos.rank"])


def run_rank(launch: Launch, rank: int, orders: Connection | None) -> None:
    """Be one rank, in a process that has imported ``tools.chaos.rank`` already. This module itself needs no torch."""
    from tools.chaos.rank import main

    main(launch, rank, orders)


class Training(TrainingRecord):
    """A running launch."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch)
        self.status: dict[str, Any] = {}
        self._orders, theirs = CONTEXT.Pipe()
        self.processes = [
            CONTEXT.Process(target=run_rank, args=(launch, rank, None if rank else theirs), daemon=True)
            for rank in range(launch.world)
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
