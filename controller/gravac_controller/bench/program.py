"""A program that measures, in a process and on a core of its own, and what it says as it goes along."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO, Any

from gravac_controller.bench.ranks import Progress

TAIL_LINES = 12


class ProgramFailed(Exception):
    """It ended before it was done; the message ends with its last lines."""


def measure(name: str, options: Sequence[object], progress: Progress) -> dict[str, Any]:
    """Run ``gravac_agent.bench.NAME`` and return ``kernels``, ``limits`` and ``rows``, each in order as they came.

    ``progress`` gets a line for each row. Raises ProgramFailed. Ends the program when interrupted.
    """
    core = max(os.sched_getaffinity(0))
    pinned = ["taskset", "--cpu-list", str(core)] if shutil.which("taskset") else []
    words = [*pinned, sys.executable, "-m", f"gravac_agent.bench.{name}", *map(str, options)]
    found: dict[str, Any] = {"kernels": None, "limits": [], "rows": []}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C reaches us alone, and we end it
        )
        try:
            assert process.stdout is not None
            with process.stdout as lines:
                for line in lines:
                    _take(json.loads(line), found, progress)
            code = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        if code:
            raise ProgramFailed(f"measuring {_how(code)}{_tail(log)}")
    return found


def _take(answer: dict[str, Any], found: dict[str, Any], progress: Progress) -> None:
    for kind, what in answer.items():
        if kind == "kernels":
            found["kernels"] = what
        else:
            found[f"{kind}s"].append(what)
        if kind == "row":
            progress(
                f"{what['name']}, n = {what['n']:,}, CF {what['cf']:g}"
                if "name" in what
                else f"n = {what['n']:,}"
            )


def _how(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was ended by signal 9, as where memory runs out: try a smaller --n"
    return f"was ended by signal {-code}" if code < 0 else f"failed with code {code}"


def _tail(log: IO[str]) -> str:
    log.seek(0)
    kept = ["".join(c for c in line if c.isprintable()) for line in log.read().splitlines()[-TAIL_LINES:]]
    return ":\n" + "\n".join(kept) if kept else ""
