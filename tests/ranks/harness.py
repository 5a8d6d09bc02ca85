"""Real ranks: each is a process with its own gloo, forked for one test from a ``zygote`` and gone with it."""

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ZYGOTE = Path(__file__).parent / "zygote.py"
RunRanks = Callable[..., list[dict[str, Any]]]
RunEach = Callable[..., list[tuple[dict[str, Any], list[dict[str, Any]]]]]


def free_port() -> int:
    """A port that stays free: none that the system gives to others, nor one that tests beside us choose."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = random.randrange(10_000, 12_000) + 2_000 * (worker % 10)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def surroundings(**more: str) -> dict[str, str]:
    """The environment of ranks: none of our settings, and each process its own order of sets, as in real life."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GRAVAC_") and name != "PYTHONHASHSEED"
    } | {"OMP_NUM_THREADS": "1", **more}


class Zygote:
    """One process of ``zygote.py``. Start several, then use them: they import beside each other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ZYGOTE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=surroundings(),
        )
        self._ready = False

    def fork(self, ranks: Sequence[dict[str, Any]]) -> list[int]:
        """Start them; returns their process ids."""
        if not self._ready:
            assert self._line() == b"ready\n"
            self._ready = True
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(ranks).encode() + b"\n")
        return list(json.loads(self._line()))

    def codes(self, until: float) -> list[int] | None:
        """How those started last ended, or null when they have not by that time (of ``time.monotonic``)."""
        left = max(0.0, until - time.monotonic())
        if not select.select([self._process.stdout], [], [], left)[0]:
            return None
        return list(json.loads(self._line()))

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{ZYGOTE.name} ended with {self._process.wait()}"
        return line

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Nursery:
    """Where ranks come from: rank 0 from one zygote, the others from another, so that their hashes differ."""

    def __init__(self) -> None:
        self._zygotes = (Zygote(), Zygote())

    def run_ranks(
        self,
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
        environment = surroundings(
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(free_port()),
            WORLD_SIZE=str(world),
            GRAVAC_KERNELS=kernels,
            GRAVAC_COLLECTIVE="gather",  # what is measured differs from run to run
        )
        outputs = [tmp_path / f"rank{rank}.log" for rank in range(world)]
        results = [tmp_path / f"rank{rank}.json" for rank in range(world)]
        ranks = [
            {
                "scenario": scenario,
                "arguments": {"folder": str(tmp_path), **arguments},
                "environment": environment | {"RANK": str(rank)},
                "output": str(outputs[rank]),
                "result": str(results[rank]),
            }
            for rank in range(world)
        ]
        codes = self._run((ranks[:1], ranks[1:]), seconds)
        if codes is None:
            raise AssertionError(f"ranks hang after {seconds} s\n" + tails(outputs))
        if any(codes) and not fails:
            raise AssertionError(f"ranks ended with {codes}\n" + tails(outputs))
        return [json.loads(result.read_text()) for result in results]

    def run_each(
        self, tmp_path: Path, scenario: str, world: int, cases: list[dict[str, Any]], seconds: float = 280
    ) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """``run_ranks`` for each set of arguments, in one set of processes: every case with its ranks' answers."""
        results: list[Any] = self.run_ranks(tmp_path, "each_of", world, seconds, which=scenario, cases=cases)
        return [(case, [result[number] for result in results]) for number, case in enumerate(cases)]

    def _run(self, shares: tuple[list[dict[str, Any]], ...], seconds: float) -> list[int] | None:
        """Exit codes of all ranks, or null when some hang. None is left running."""
        started = [(zygote, zygote.fork(share)) for zygote, share in zip(self._zygotes, shares, strict=True)]
        codes: list[list[int] | None] = []
        until = time.monotonic() + seconds
        try:
            for zygote, _ in started:
                codes.append(zygote.codes(until))
        finally:
            for number, (zygote, ranks) in enumerate(started):
                if number >= len(codes) or codes[number] is None:
                    for rank in ranks:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(rank, signal.SIGKILL)
                    zygote.codes(time.monotonic() + 10)
        return None if None in codes else [code for share in codes for code in share or ()]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for zygote in self._zygotes:
            zygote.close()


def tails(outputs: list[Path]) -> str:
    return "\n".join(f"--- {output.name}\n{output.read_text(errors='replace')[-3000:]}" for output in outputs)
