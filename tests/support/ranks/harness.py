"""Runs real ranks: each is a process, which runs scenarios one after another, each with a gloo of its own."""

import atexit
import contextlib
import functools
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.harness.controller import PATIENCE_SECONDS
from tools.harness.forked import Forked, Zygote, first_line, surroundings

if TYPE_CHECKING:
    from gravac_lab.bench.network import Host

RunRanks = Callable[..., list[dict[str, Any]]]
RunEach = Callable[..., list[tuple[dict[str, Any], list[dict[str, Any]]]]]


def free_port() -> int:
    """Return a port that stays free: the system gives it to no other program, and parallel tests choose others."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = random.randrange(10_000, 12_000) + 2_000 * (worker % 10)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@functools.cache
def zygotes() -> tuple[Zygote, Zygote]:
    """Return two zygotes, for rank 0 and for the others, so that ranks order sets differently, as real ones do."""
    modules = [
        "torch._dynamo",
        "torch.distributed",
        "gravac_agent",
        "tests.support.ranks.rank",
    ]  # DDP imports the first
    made = Zygote(*modules), Zygote(*modules)
    atexit.register(lambda: [ranks.close() for ranks in POOL.values()])  # before those of the zygotes
    return made


class Ranks:
    """Processes of the ranks of one world, which run scenarios one after another."""

    def __init__(self, world: int, hosts: "Sequence[Host]" = ()) -> None:
        environment = surroundings(
            MASTER_ADDR="127.0.0.1",
            WORLD_SIZE=str(world),
            OMP_NUM_THREADS="1",
            GRAVAC_COLLECTIVE="gather",  # a measured network differs from run to run
        )
        if hosts:
            from gravac_lab.bench.network import INTERFACE  # only here: see tests/support/lab.py

            environment |= {"MASTER_ADDR": hosts[0].address, "GLOO_SOCKET_IFNAME": INTERFACE}
        self._processes: list[Forked] = []
        try:
            for rank in range(world):
                own = {"RANK": str(rank)}
                if hosts:
                    own["TEST_NAMESPACE"] = hosts[rank * len(hosts) // world].namespace
                self._processes.append(
                    zygotes()[min(rank, 1)].start(
                        function="tests.support.ranks.rank:main",
                        arguments={},
                        environment=environment | own,
                        stdin=subprocess.PIPE,
                        stderr=2,
                    )
                )
        except BaseException:  # a test's time limit
            self.close()
            raise

    def run(self, folder: Path, seconds: float, **request: Any) -> list[Any]:
        """Run a scenario, and return what each rank returned. What they print is in ``folder``."""
        port = free_port()
        outputs = [folder / f"rank{rank}.log" for rank in range(len(self._processes))]
        for process, output in zip(self._processes, outputs, strict=True):
            own = {"port": port, "log": str(output), "result": str(output.with_suffix(".json"))}
            assert process.stdin is not None
            process.stdin.write(json.dumps(request | own).encode() + b"\n")
            process.stdin.flush()
        until = time.monotonic() + seconds
        try:
            codes = [self._answer(process, until) for process in self._processes]
        except TimeoutError:
            for process in self._processes:  # each writes to its log where its threads are
                process.send_signal(signal.SIGUSR1)
            time.sleep(2)
            raise AssertionError(f"ranks hang after {seconds} s\n" + tails(outputs)) from None
        if any(codes):
            raise AssertionError(f"ranks ended with {codes}\n" + tails(outputs))
        return [json.loads(output.with_suffix(".json").read_text()) for output in outputs]

    def _answer(self, process: Forked, until: float) -> int:
        """Return 0 when a rank has done it, and the exit code of one that ended."""
        assert process.stdout is not None
        said = first_line(process.stdout, max(0.1, until - time.monotonic()))
        return 0 if said else process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()


POOL: dict[int, Ranks] = {}
"""Ranks that wait for a scenario, by their number."""


def run_ranks(
    tmp_path: Path,
    scenario: str,
    world: int = 2,
    seconds: float = 240,
    fresh: bool = False,
    hosts: "Sequence[Host]" = (),
    **arguments: Any,
) -> list[dict[str, Any]]:
    """Run a function of ``scenarios`` on every rank, and return what each returned.

    ``fresh``: in new processes, for a scenario that changes its process or ends it. Others must leave all as it was.
    ``hosts``: namespaces of a testbed that the ranks are divided among, in order. None: all are on this machine.

    A rank that fails, or a run longer than ``seconds``, raises AssertionError with the ranks' output.
    """
    fresh = fresh or bool(hosts)
    # Out of the pool while they run: those that fail, or are interrupted, do not come back.
    ranks = None if fresh else POOL.pop(world, None)
    ranks = ranks or Ranks(world, hosts)
    arguments = {"folder": str(tmp_path), **arguments}
    try:
        found = ranks.run(tmp_path, seconds, scenario=scenario, arguments=arguments, fresh=fresh)
    except BaseException:
        ranks.close()
        raise
    if fresh or world in POOL:  # others came back meanwhile, where a thread ran these
        ranks.close()
    else:
        POOL[world] = ranks
    return found


def run_each(
    tmp_path: Path,
    scenario: str,
    world: int,
    cases: list[dict[str, Any]],
    seconds: float = 280,
    fresh: bool = False,
) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Run each set of arguments in one set of processes. Returns each case with the results of its ranks."""
    results: list[Any] = run_ranks(tmp_path, "each_of", world, seconds, fresh, which=scenario, cases=cases)
    return [(case, [result[number] for result in results]) for number, case in enumerate(cases)]


def tails(outputs: list[Path]) -> str:
    return "\n".join(f"--- {output.name}\n{output.read_text(errors='replace')[-6000:]}" for output in outputs)
