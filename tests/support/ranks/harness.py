"""Runs real ranks: each is a process with its own gloo, started for one test and ended with it."""

import contextlib
import functools
import importlib.util
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

from gravac.kernels.backend import _KERNELS as KERNELS
from tools.harness.forked import Forked, Zygote, surroundings

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
    if importlib.util.find_spec("numba"):
        modules += [f"gravac.kernels.cpu.{name}" for name in KERNELS]
    return Zygote(*modules), Zygote(*modules)


def run_ranks(
    tmp_path: Path,
    scenario: str,
    world: int = 2,
    seconds: float = 240,
    fails: bool = False,
    kernels: str = "auto",
    hosts: "Sequence[Host]" = (),
    **arguments: Any,
) -> list[dict[str, Any]]:
    """Run a function of ``scenarios`` on every rank, and return what each returned.

    ``hosts``: namespaces of a testbed that the ranks are divided among, in order. None: all are on this machine.

    A rank that fails, or a run longer than ``seconds``, raises AssertionError with the ranks' output.
    """
    environment = surroundings(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
        WORLD_SIZE=str(world),
        OMP_NUM_THREADS="1",
        GRAVAC_KERNELS=kernels,
        GRAVAC_COLLECTIVE="gather",  # a measured network differs from run to run
    )
    if hosts:
        from gravac_lab.bench.network import INTERFACE  # only here: see tests/support/lab.py

        environment |= {"MASTER_ADDR": hosts[0].address, "GLOO_SOCKET_IFNAME": INTERFACE}
    arguments = {"folder": str(tmp_path), **arguments}
    processes: list[Forked] = []
    outputs = [tmp_path / f"rank{rank}.log" for rank in range(world)]
    try:
        for rank, output in enumerate(outputs):
            result = str(tmp_path / f"rank{rank}.json")
            own = {"RANK": str(rank)}
            if hosts:
                own["TEST_NAMESPACE"] = hosts[rank * len(hosts) // world].namespace
            with output.open("wb") as stream:
                processes.append(
                    zygotes()[min(rank, 1)].start(
                        function="tests.support.ranks.rank:main",
                        arguments={"scenario": scenario, "arguments": arguments, "result": result},
                        environment=environment | own,
                        stdout=stream,
                    )
                )
        until = time.monotonic() + seconds
        codes = [process.wait(max(0.1, until - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:  # each writes to its log where its threads are
            process.send_signal(signal.SIGUSR1)
        time.sleep(2)
        raise AssertionError(f"ranks hang after {seconds} s\n" + tails(outputs)) from None
    finally:  # also those that were started before one that failed to start
        for process in processes:
            process.kill()
            process.wait()
    if any(codes) and not fails:
        raise AssertionError(f"ranks ended with {codes}\n" + tails(outputs))
    return [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(world)]


def run_each(
    tmp_path: Path, scenario: str, world: int, cases: list[dict[str, Any]], seconds: float = 280
) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Run each set of arguments in one set of processes. Returns each case with the results of its ranks."""
    results: list[Any] = run_ranks(tmp_path, "each_of", world, seconds, which=scenario, cases=cases)
    return [(case, [result[number] for result in results]) for number, case in enumerate(cases)]


def tails(outputs: list[Path]) -> str:
    return "\n".join(f"--- {output.name}\n{output.read_text(errors='replace')[-6000:]}" for output in outputs)
