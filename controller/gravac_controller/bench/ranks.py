"""The processes that train by one method, one a host: started, asked, and ended, whatever happens."""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gravac.wording import printable

END_SECONDS = 10.0
"""How long ranks get to end by themselves."""
TAIL_LINES = 12


class RanksFailed(Exception):
    """A rank ended or did not answer in time; the message ends with its last lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank runs. ``wrap`` puts a command on its host; ``core`` is None when it is not pinned to one."""

    address: str
    interface: str
    core: int | None
    wrap: Callable[[Sequence[str]], list[str]]


class Ranks:
    """One process a place, in order of rank; they speak JSON lines, one answer to each request."""

    def __init__(
        self, words: Sequence[str], places: Sequence[Place], port: int | None, scratch: Path
    ) -> None:
        """``port``: where they meet, on the first place's host; None: a free one of this machine's loopback."""
        scratch.mkdir(parents=True)
        self._reserved = _reserve() if port is None else None
        if self._reserved is not None:
            port = self._reserved.getsockname()[1]
        self._logs = [scratch / f"rank{rank}.log" for rank in range(len(places))]
        self._answers: list[queue.Queue[str]] = [queue.Queue() for _ in places]
        self._processes: list[subprocess.Popen[str]] = []
        common = {name: value for name, value in os.environ.items() if not name.startswith("GRAVAC_")}
        common |= {"MASTER_ADDR": places[0].address, "MASTER_PORT": str(port)}
        common |= {"WORLD_SIZE": str(len(places)), "OMP_NUM_THREADS": "1"}
        try:
            for rank, place in enumerate(places):
                self._start(rank, place, words, common)
        except BaseException:
            self.close()
            raise

    def ready(self, seconds: float) -> list[dict[str, Any]]:
        """What every rank says of itself once it is set up. Raises RanksFailed."""
        return self._collect(seconds)

    def ask(self, seconds: float, **request: object) -> list[dict[str, Any]]:
        """Put one request to all ranks and wait for all answers. Raises RanksFailed."""
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it ended: _collect says so
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
        return self._collect(seconds)

    def close(self) -> None:
        """End all ranks: by the end of their input, or else by force."""
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        until = time.monotonic() + END_SECONDS
        for process in self._processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if self._reserved is not None:
            self._reserved.close()

    def _start(self, rank: int, place: Place, words: Sequence[str], common: dict[str, str]) -> None:
        pinned = [] if place.core is None else ["taskset", "--cpu-list", str(place.core)]
        with self._logs[rank].open("wb") as log:
            process = subprocess.Popen(
                place.wrap([*pinned, *words]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**common, "RANK": str(rank), "GLOO_SOCKET_IFNAME": place.interface},
                start_new_session=True,  # Ctrl-C reaches us alone, and we end them in order
            )
        self._processes.append(process)
        threading.Thread(target=self._read, args=(rank, process.stdout), daemon=True).start()

    def _read(self, rank: int, stream: IO[str] | None) -> None:
        assert stream is not None
        with stream:
            for line in stream:
                self._answers[rank].put(line)
        self._answers[rank].put("")

    def _collect(self, seconds: float) -> list[dict[str, Any]]:
        until = time.monotonic() + seconds
        found = []
        for rank, answers in enumerate(self._answers):
            try:
                line = answers.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise RanksFailed(
                    f"rank {rank} did not answer within {seconds:.0f} s{self._tail(rank)}"
                ) from None
            if not line:
                raise RanksFailed(f"rank {rank} ended{self._tail(rank)}")
            found.append(json.loads(line))
        return found

    def _tail(self, rank: int) -> str:
        lines = self._logs[rank].read_text(encoding="utf-8", errors="replace").splitlines()
        kept = [printable(line) for line in lines[-TAIL_LINES:]]
        return ":\n" + "\n".join(kept) if kept else ""


def _reserve() -> socket.socket:
    """A port of the loopback that nobody is given while this is open, and that rank 0 can listen on all the same.

    A rank takes seconds to come so far: a port that was merely free a moment ago may be somebody's by then. Bound and
    not listening, with SO_REUSEADDR, it keeps off all but those who ask for it by number and say SO_REUSEADDR too, as
    torch's store does.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
