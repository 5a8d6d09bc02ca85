"""The processes that train by one method, one a host: started, asked, and ended, whatever happens."""

import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from gravac_controller.bench.namespaces import NetworkUnavailable
from gravac_controller.bench.network import INTERFACE, Network

END_SECONDS = 10.0
"""How long ranks get to end by themselves."""
TAIL_LINES = 12
FIRST_PORT = 29600
Progress = Callable[[str], None]
"""Gets a line about how it goes, now and then."""


class RanksFailed(Exception):
    """A rank ended or did not answer in time; the message ends with its last lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank runs. ``wrap`` puts a command on its host; ``core`` is None when it is not pinned to one."""

    address: str
    interface: str
    core: int | None
    wrap: Callable[[Sequence[str]], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """A place for each rank. ``no_network``: why they are side by side on this machine; None: each has a host."""

    ranks: list[Place]
    no_network: str | None
    shape: Callable[[float | None], None] | None = None
    """Gives every link another rate, bits a second, also while ranks talk; None: there are no links of our own."""

    def port(self, number: int) -> int | None:
        """Where the ``number``-th group of ranks meets; None: wherever is free, for others are on this machine too."""
        return FIRST_PORT + number if self.no_network is None else None

    @property
    def interface(self) -> str | None:
        """Whose counters tell the bytes of one rank; None: no interface is a rank's own."""
        return INTERFACE if self.no_network is None else None


def side_by_side(count: int, why: str, progress: Progress) -> Places:
    """On this machine's loopback."""
    here = Place(address="127.0.0.1", interface="lo", core=None, wrap=list)
    return Places(ranks=[replace(here, core=core) for core in _cores(count, progress)], no_network=why)


@contextmanager
def on_hosts(count: int, bits_per_second: float | None, progress: Progress) -> Iterator[Places]:
    """On hosts with links of that rate (None: not shaped); where no network can be made, side by side."""
    with ExitStack() as stack:
        try:
            network = stack.enter_context(Network(count, bits_per_second))
        except NetworkUnavailable as error:
            progress(f"No network of our own: {error}.")
            yield side_by_side(count, str(error), progress)
            return
        ranks = [
            Place(address=host.address, interface=INTERFACE, core=core, wrap=host.command)
            for host, core in zip(network.hosts, _cores(count, progress), strict=True)
        ]
        yield Places(ranks=ranks, no_network=None, shape=network.shape)


def _cores(count: int, progress: Progress) -> list[int | None]:
    """A core a rank, so that ranks do not take turns on one while another idles."""
    if shutil.which("taskset") is None:
        progress("Ranks are not pinned to cores: the command taskset is missing (Debian: util-linux).")
        return [None] * count
    usable = sorted(os.sched_getaffinity(0))
    if count > len(usable):
        progress(f"{count} ranks share {len(usable)} cores: step times are those of an overloaded machine.")
    return [usable[rank % len(usable)] for rank in range(count)]


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
        kept = ["".join(c for c in line if c.isprintable()) for line in lines[-TAIL_LINES:]]
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
