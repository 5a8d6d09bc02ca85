"""Runs a measuring program in a separate process on its own core, and collects its results."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO, Any

from gravac.wording import printable
from gravac_lab.bench.ranks import Progress

TAIL_LINES = 12
REFUSED = 2
"""Exit code of a program that refuses an option; the last line on stderr says why."""


class ProgramFailed(Exception):
    """The program failed. The message ends with its last lines."""


class InvalidArguments(ValueError):
    """The program refused an option. The message is its own."""


def measure(name: str, options: Sequence[object], progress: Progress) -> dict[str, Any]:
    """Run ``gravac_lab.programs.NAME`` on its own core and return its ``kernels``, ``limits`` and ``rows``, in order.

    ``progress`` receives a line for each row. Raises ProgramFailed. Kills the program when interrupted.
    """
    core = max(os.sched_getaffinity(0))
    pinned = ["taskset", "--cpu-list", str(core)] if shutil.which("taskset") else []
    return run_program(f"gravac_lab.programs.{name}", options, progress, pinned)


def run_program(
    module: str, options: Sequence[object], progress: Progress, before: Sequence[str] = ()
) -> dict[str, Any]:
    """Run a module that prints JSON lines, and return its ``kernels``, ``limits`` and ``rows``, in order.

    Args:
        module: A program that uses ``gravac_lab.programs.process.run_program``.
        options: Of its command line.
        progress: Receives each line of progress, and a line for each row of a program without any.
        before: Command that runs it.

    Raises:
        InvalidArguments: The program ended with code 2.
        ProgramFailed: It failed otherwise.
    """
    words = [*before, sys.executable, "-m", module, *map(str, options)]
    found: dict[str, Any] = {"kernels": None, "limits": [], "rows": []}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C reaches only this process, which ends the program
        )
        try:
            assert process.stdout is not None
            with process.stdout as lines:
                for line in lines:
                    _collect(json.loads(line), found, progress)
            code = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        if code == REFUSED:
            raise InvalidArguments(_lines(log)[-1])
        if code:
            raise ProgramFailed(f"measuring {_how(code)}{_tail(log)}")
    return found


def _collect(answer: dict[str, Any], found: dict[str, Any], progress: Progress) -> None:
    for kind, what in answer.items():
        if kind == "kernels":
            found["kernels"] = what
        elif kind == "progress":
            progress(printable(what))
        else:
            found[f"{kind}s"].append(what)
        if kind == "row" and "n" in what:
            progress(
                f"{what['name']}, n = {what['n']:,}, CF {what['cf']:g}"
                if "name" in what
                else f"n = {what['n']:,}"
            )


def _how(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was ended by signal 9, as when memory runs out: try a smaller --n"
    return f"was ended by signal {-code}" if code < 0 else f"failed with code {code}"


def _tail(log: IO[str]) -> str:
    return ":\n" + "\n".join(_lines(log)[-TAIL_LINES:])


def _lines(log: IO[str]) -> list[str]:
    log.seek(0)
    return ["".join(c for c in line if c.isprintable()) for line in log.read().splitlines()] or ["no message"]
