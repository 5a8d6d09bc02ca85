"""The ranks of a benchmark: where they run, and their processes, which are always ended."""

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

from gravac_lab.bench.namespaces import NetworkUnavailable
from gravac_lab.bench.network import INTERFACE, HostNetwork

END_SECONDS = 10.0
"""How long ranks may take to end by themselves."""
TAIL_LINES = 12
FIRST_PORT = 29600
Progress = Callable[[str], None]
"""Receives lines about the progress."""


class RanksFailed(Exception):
    """A rank ended, or did not answer in time. The message ends with its last lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank runs. ``wrap``: makes a command run on its host. ``core``: None where it is not pinned."""

    address: str
    interface: str
    core: int | None
    wrap: Callable[[Sequence[str]], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """A place for each rank. ``no_network``: why ranks share this machine's network; None: each has a host."""

    ranks: list[Place]
    no_network: str | None
    shape: Callable[[float | None], None] | None = None
    """Changes the rate of every link (bits per second), also while it is used; None: links cannot be shaped."""

    def port(self, number: int) -> int | None:
        """The port of the ``number``-th group of ranks; None: any free one, where this machine's network is shared."""
        return FIRST_PORT + number if self.no_network is None else None

    @property
    def interface(self) -> str | None:
        """The interface whose counters have the bytes of one host; None: ranks share this machine's."""
        return INTERFACE if self.no_network is None else None


def side_by_side(count: int, why: str, progress: Progress) -> Places:
    """Places on this machine's loopback. ``why``: the reason, for the results."""
    here = Place(address="127.0.0.1", interface="lo", core=None, wrap=list)
    return Places(ranks=[replace(here, core=core) for core in _cores(count, progress)], no_network=why)


@contextmanager
def on_hosts(
    count: int, bits_per_second: float | None, progress: Progress, each: int = 1
) -> Iterator[Places]:
    """Places of ``each`` rank on hosts with links of that rate (None: not shaped), or side by side where no network can
    be created."""
    with ExitStack() as stack:
        try:
            network = stack.enter_context(HostNetwork(count, bits_per_second))
        except NetworkUnavailable as error:
            progress(f"No emulated network: {error}.")
            yield side_by_side(count * each, str(error), progress)
            return
        hosts = [host for host in network.hosts for _ in range(each)]
        ranks = [
            Place(address=host.address, interface=INTERFACE, core=core, wrap=host.command)
            for host, core in zip(hosts, _cores(count * each, progress), strict=True)
        ]
        yield Places(ranks=ranks, no_network=None, shape=network.shape)


def _cores(count: int, progress: Progress) -> list[int | None]:
    """A core for each rank, so that ranks do not share one while another is idle."""
    if shutil.which("taskset") is None:
        progress("Ranks are not pinned to cores: the command taskset is missing (Debian: util-linux).")
        return [None] * count
    usable = sorted(os.sched_getaffinity(0))
    if count > len(usable):
        progress(f"{count} ranks share {len(usable)} cores: step times are those of an overloaded machine.")
    return [usable[rank % len(usable)] for rank in range(count)]


class Ranks:
    """One process for each place, in order of rank. They exchange JSON lines, one answer per request."""

    def __init__(
        self, words: Sequence[str], places: Sequence[Place], port: int | None, scratch: Path
    ) -> None:
        """``port``: of rank 0, on the first place's host; None: a free port of this machine's loopback."""
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
        """The first message of every rank, once it is ready. Raises RanksFailed."""
        return self._collect(seconds)

    def ask(self, seconds: float, **request: object) -> list[dict[str, Any]]:
        """Send a request to all ranks and return their answers. Raises RanksFailed."""
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it ended: _collect raises
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
        return self._collect(seconds)

    def close(self) -> None:
        """End all ranks: close their input, then kill those that remain."""
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
                start_new_session=True,  # Ctrl-C reaches only this process, which ends the ranks
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
        last = ["".join(c for c in line if c.isprintable()) for line in lines[-TAIL_LINES:]]
        return ":\n" + "\n".join(last) if last else ""


def _reserve() -> socket.socket:
    """Reserve a port of the loopback on which rank 0 can still listen.

    A rank takes seconds to start, and a port that was free before may be taken by then. The socket is bound but does
    not listen, with SO_REUSEADDR: only programs that ask for this port with SO_REUSEADDR can use it, as torch's store
    does.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
