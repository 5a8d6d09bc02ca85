"""Real ranks: each is a process with its own gloo, started for one test and gone with it."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RunRanks = Callable[..., list[dict[str, Any]]]
RunEach = Callable[..., list[tuple[dict[str, Any], list[dict[str, Any]]]]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def run_ranks(
    tmp_path: Path,
    scenario: str,
    world: int = 2,
    seconds: float = 120,
    fails: bool = False,
    kernels: str = "reference",  # loading the compiled ones takes each process a second
    **arguments: Any,
) -> list[dict[str, Any]]:
    """Run that function of ``scenarios`` on every rank; returns what each returned.

    A rank that fails, or a run longer than ``seconds``, raises AssertionError with the ranks' output.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GRAVAC_")},
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
        "GRAVAC_KERNELS": kernels,
        "GRAVAC_COLLECTIVE": "gather",  # what is measured differs from run to run
    }
    arguments = {"folder": str(tmp_path), **arguments}
    processes, outputs = [], []
    for rank in range(world):
        output = tmp_path / f"rank{rank}.log"
        outputs.append(output)
        command = [sys.executable, str(HERE / "worker.py"), scenario, json.dumps(arguments)]
        with output.open("wb") as stream:
            processes.append(
                subprocess.Popen(
                    command,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    env={
                        **environment,
                        "RANK": str(rank),
                        "RANK_RESULT_PATH": str(tmp_path / f"rank{rank}.json"),
                    },
                )
            )
    until = time.monotonic() + seconds
    try:
        codes = [process.wait(max(0.1, until - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        raise AssertionError(f"ranks hang after {seconds} s\n" + tails(outputs)) from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    if any(codes) and not fails:
        raise AssertionError(f"ranks ended with {codes}\n" + tails(outputs))
    return [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(world)]


def run_each(
    tmp_path: Path, scenario: str, world: int, cases: list[dict[str, Any]], seconds: float = 280
) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """``run_ranks`` for each set of arguments, in one set of processes: every case with what its ranks returned."""
    results: list[Any] = run_ranks(tmp_path, "each_of", world, seconds, which=scenario, cases=cases)
    return [(case, [result[number] for result in results]) for number, case in enumerate(cases)]


def tails(outputs: list[Path]) -> str:
    return "\n".join(f"--- {output.name}\n{output.read_text(errors='replace')[-3000:]}" for output in outputs)
