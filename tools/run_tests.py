"""What ``make test`` runs: first the tests that may run beside each other, on two cores; then, one by one, those that
measure time (mark ``alone``).

``python tools/run_tests.py [arguments of pytest]``. Both phases run whatever comes of the first. What failed is said
again at the end. Exit code 0 when nothing failed, 5 when neither phase had a test, else that of the first to fail.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

TOGETHER = ["--phase=together", "--numprocesses=2", "--dist=worksteal"]
ALONE = ["--phase=alone"]
REPORT = ["--override-ini=junit_family=xunit1"]
"""The JUnit format that names files."""
NO_TESTS = 5
COMPILE = "from gravac.kernels import backend; backend.active()"
MOST_LINES = 60
"""Of one failure, when it is told again: its last lines."""


@dataclass(frozen=True)
class Outcome:
    """How a phase went. ``failures``: name and text of each."""

    name: str
    code: int
    seconds: float
    tests: int
    failures: list[tuple[str, str]]


def run(name: str, arguments: list[str], report: Path, **environment: str) -> Outcome:
    """Run pytest; its output goes where ours goes."""
    command = [sys.executable, "-m", "pytest", *arguments]
    print(f"\n== {name}: {shlex.join(command[1:])}", flush=True)
    began = time.monotonic()
    done = subprocess.run(
        [*command, *REPORT, f"--junit-xml={report}"], env=os.environ | environment, check=False
    )
    seconds = time.monotonic() - began
    if not report.exists():
        return Outcome(name, done.returncode or 1, seconds, 0, [("pytest", "ended before its report")])
    return Outcome(name, done.returncode, seconds, *read(report))


def read(report: Path) -> tuple[int, list[tuple[str, str]]]:
    """Number of tests in a JUnit report, and those that failed."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    failures = [
        (f"{case.get('file') or case.get('classname')}::{case.get('name')}", found.text or "")
        for case in cases
        for found in case
        if found.tag in ("failure", "error")
    ]
    return len(cases), failures


def tell(outcomes: list[Outcome]) -> None:
    """Failures of both phases once more, then a line a phase."""
    for outcome in outcomes:
        for name, text in outcome.failures:
            print(f"\n== failed, {outcome.name}: {name}")
            print("\n".join(text.splitlines()[-MOST_LINES:]))
    print()
    for outcome in outcomes:
        print(
            f"== {outcome.name}: {outcome.tests} tests in {outcome.seconds:.0f} s, "
            f"{len(outcome.failures)} failed, exit code {outcome.code}"
        )
        for name, _ in outcome.failures:
            print(f"   FAILED {name}")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="gravac-tests-") as folder:
        reports = Path(folder)
        # One thread a process: two of them share two cores, and sums come out the same on any machine. The workers
        # must agree on the names of the tests, so on the order of sets; ranks must not need to, so not below.
        # On a fresh clone kernels are compiled: once, beside the workers' imports, not by each process that runs one.
        compiling = subprocess.Popen(
            [sys.executable, "-c", COMPILE], env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        together = run(
            "together",
            [*TOGETHER, *arguments],
            reports / "together.xml",
            OMP_NUM_THREADS="1",
            PYTHONHASHSEED="0",
        )
        compiling.wait()
        alone = run("alone", [*ALONE, *arguments], reports / "alone.xml", OMP_NUM_THREADS="1")
    tell([together, alone])
    return verdict(together.code, alone.code)


def verdict(*codes: int) -> int:
    """One exit code for both phases."""
    if set(codes) == {NO_TESTS}:
        return NO_TESTS
    return next((code for code in codes if code not in (0, NO_TESTS)), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
