"""A group of ranks that runs a program under torchrun, each rank on a host of its own, and takes turns with others."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import IO, Any

from gravac_lab.bench.network import INTERFACE, HostNetwork
from observe_parts.turns import SOCKET

PROGRAMS = Path(__file__).parent / "programs"
START_SECONDS, BLOCK_SECONDS, END_SECONDS = 120.0, 120.0, 60.0
ON_ITS_HOST = 'exec ip netns exec "$HOSTS$LOCAL_RANK" taskset -c $((LOCAL_RANK % CORES)) "$0" "$@"'
"""What torchrun starts for each rank."""


class GroupFailed(Exception):
    """A rank ended, or did not answer in time. The message ends with its last lines."""


@dataclass(frozen=True, slots=True)
class Block:
    """What the ranks say of a block of steps.

    Attributes:
        seconds: Of each step, of each rank.
        cpu: The same, of the core, in the thread that trains.
        losses: The same, exactly, as text.
    """

    seconds: list[list[float]]
    cpu: list[list[float]]
    losses: list[list[str]]

    @property
    def total(self) -> float:
        """Seconds of all its steps, as the mean over ranks."""
        return fmean(sum(each) for each in self.seconds)

    def step(self) -> float:
        """Return the median step, as the mean over ranks, without the first one."""
        return _median(self.seconds)

    def working(self) -> float:
        """Return the same of the core's time."""
        return _median(self.cpu)


def _median(ranks: list[list[float]]) -> float:
    return fmean(median(each[1:]) for each in ranks)


class Group:
    """``with Group(…) as group:`` and then ``group.steps(20)``.

    Args:
        program: Of ``programs/``.
        network: The hosts, one for each rank.
        port: Of its own.
        scratch: Folder for its socket and its output.
        before: Words that start torchrun.
        variables: Of its environment.
        python: That runs it.
    """

    def __init__(
        self,
        program: str,
        network: HostNetwork,
        port: int,
        scratch: Path,
        before: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        scratch.mkdir(parents=True)
        self._ranks = len(network.hosts)
        self._log = scratch / "log"
        self.out = scratch / "out"
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(scratch / "turns"))
        self._server.listen()
        first = network.hosts[0]
        words = [*before, *first.command([python, "-m", "torch.distributed.run"])]
        words += [
            "--nproc-per-node",
            str(self._ranks),
            "--master-addr",
            first.address,
            "--master-port",
            str(port),
        ]
        words += ["--local-addr", first.address, "--no-python", "sh", "-c", ON_ITS_HOST, python]
        words.append(str(PROGRAMS / f"{program}.py"))
        with self._log.open("wb") as log, self.out.open("wb") as out:
            self._process = subprocess.Popen(
                words,
                stdout=out,
                stderr=log,
                cwd=scratch,
                env={
                    **os.environ,
                    "PYTHONPATH": str(PROGRAMS.parents[1]),
                    "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": INTERFACE,
                    "HOSTS": first.namespace.removesuffix("0"),
                    "CORES": str(len(os.sched_getaffinity(0))),
                    SOCKET: str(scratch / "turns"),
                    **(variables or {}),
                },
                start_new_session=True,
            )
        self._files: list[IO[str]] = []

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        for file in self._files:
            file.close()
        self._server.close()

    def ready(self) -> None:
        """Wait until all ranks are."""
        found: dict[int, IO[str]] = {}
        self._server.settimeout(START_SECONDS)
        while len(found) < self._ranks:
            try:
                connection, _ = self._server.accept()
            except TimeoutError:
                raise self._failed("did not start in time") from None
            connection.settimeout(BLOCK_SECONDS)
            file = connection.makefile("rw", encoding="utf-8")
            found[self._read(file)["rank"]] = file
        self._files = [found[rank] for rank in sorted(found)]

    def steps(self, count: int, network: bool = True) -> Block:
        """Let the ranks train."""
        self._ask({"steps": count, "network": network})
        answers = [self._read(file) for file in self._files]
        return Block(*([each[what] for each in answers] for what in ("seconds", "cpu", "losses")))

    def end(self) -> str:
        """End the program, and return what was printed."""
        self._ask({"steps": 0})
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._failed("does not end") from None
        if code:
            raise self._failed(f"ended with code {code}")
        return self.out.read_text()

    def _ask(self, what: dict[str, Any]) -> None:
        for file in self._files:
            file.write(json.dumps(what) + "\n")
            file.flush()

    def _read(self, file: IO[str]) -> Any:
        try:
            line = file.readline()
        except TimeoutError:
            raise self._failed("did not answer in time") from None
        if not line:
            raise self._failed("ended")
        return json.loads(line)

    def _failed(self, what: str) -> GroupFailed:
        tail = self._log.read_text(errors="replace").splitlines()[-40:]
        return GroupFailed("\n".join([what, *tail]))
