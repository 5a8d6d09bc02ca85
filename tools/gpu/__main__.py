"""Check gravac on a GPU, step by step: ``make gpu``.

    python -m tools.gpu [--step NAME ...] [--seconds N] [--again] [--copy FOLDER] [--rehearse]

Runs the steps that have not passed yet, and writes build/gpu.json and build/gpu.md after each. On a machine that lacks
packages it installs the wheels of `make gpu-wheels` into build/gpu-site first. It needs only Python and torch itself.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime
from pathlib import Path

from tools.gpu.figures import figures_in, machine_in
from tools.gpu.results import Result, Results, load, save
from tools.gpu.steps import STEPS, Step

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
WHEELS, SITE = BUILD / "gpu-wheels", BUILD / "gpu-site"
NEEDED = ("pydantic", "pydantic_settings", "fastapi", "uvicorn", "prometheus_client", "click", "rich")
NEEDED_BY_TESTS = ("pytest", "pytest_timeout", "hypothesis")
SOURCES = ("gravac", "agent", "controller", "lab", "tools/gpu", "tests/gpu", "tests/support")
LEAST_SECONDS = 30
"""A step is not begun with less time than this."""
TAIL = 4000
"""Characters of output that are kept of a step that did not pass."""


def environment() -> dict[str, str]:
    """Return the variables that a step's program gets: this checkout first, then the wheels if packages are missing."""
    paths = [str(ROOT), str(ROOT / "agent"), str(ROOT / "controller")]
    if missing := [name for name in (*NEEDED, *NEEDED_BY_TESTS) if importlib.util.find_spec(name) is None]:
        _install(missing)
        paths.append(str(SITE))
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        # Plugins that the machine has for others change nothing, and what they warn of is no error.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "-p pytest_timeout -p no:cacheprovider -W default",
    }


def _install(missing: list[str]) -> None:
    wheels = sorted(WHEELS.glob("*.whl"))
    if not wheels:
        raise SystemExit(
            f"this Python lacks {', '.join(missing)}, and {WHEELS} is empty: run `make gpu-wheels` on a machine with a "
            "network and bring that folder along"
        )
    stamp = SITE / ".installed"
    names = "\n".join(wheel.name for wheel in wheels)
    if stamp.exists() and stamp.read_text() == names:
        return
    shutil.rmtree(SITE, ignore_errors=True)
    options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", f"--target={SITE}"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *map(str, wheels)], check=True)
    stamp.write_text(names)


def source() -> str:
    """Return a digest of the program's files, so that results of different versions can be told apart."""
    found = hashlib.sha256()
    for folder in SOURCES:
        for file in sorted((ROOT / folder).rglob("*.py")):
            found.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return found.hexdigest()[:12]


def run(
    step: Step, surroundings: dict[str, str], seconds: float, rehearsal: bool
) -> tuple[Result, dict[str, str]]:
    """Run a step, and kill it and all it started when time is up. Returns its result and facts about the machine."""
    arguments = step.rehearsal if rehearsal else step.arguments
    report = BUILD / "gpu-tests.xml"
    report.unlink(missing_ok=True)
    if step.kind == "tests":
        command = [sys.executable, "-m", "pytest", "-q", "-s", f"--junitxml={report}", *arguments]
    else:
        command = [sys.executable, "-m", "lab.benchmarks.cuda", "--lines", *arguments]
    begun, log = time.monotonic(), BUILD / "gpu.log"
    with log.open("ab") as stream:
        start = stream.tell()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=surroundings,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    output = log.read_bytes()[start:].decode(errors="replace")
    lines = output.splitlines()
    result = Result(
        state="passed" if code == 0 else "timed out" if code is None else "failed",
        seconds=time.monotonic() - begun,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        source=source(),
        figures=figures_in(lines),
        tail="" if code == 0 else output[-TAIL:],
    )
    if report.exists():
        result.tests, result.failures = outcomes(report)
        if not result.tests["passed"]:
            result.state = "failed" if code == 0 else result.state  # all skipped: nothing was shown
    return result, machine_in(lines)


def outcomes(report: Path) -> tuple[dict[str, int], dict[str, str]]:
    """Return the numbers of tests by outcome, and the first line of why tests failed, from pytest's XML."""
    numbers, failures = {"passed": 0, "failed": 0, "skipped": 0}, {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = next((found for kind in ("failure", "error") if (found := case.find(kind)) is not None), None)
        if bad is not None:
            failures[case.get("name", "")] = (bad.get("message") or "").partition("\n")[0][:300]
        numbers[
            "failed" if bad is not None else "skipped" if case.find("skipped") is not None else "passed"
        ] += 1
    return numbers, failures


def run_steps(chosen: list[Step], results: Results, options: argparse.Namespace) -> None:
    """Run steps in the time there is, and save after each."""
    surroundings, until, now = environment(), time.monotonic() + options.seconds, source()
    name = "gpu-rehearsal" if options.rehearse else "gpu"
    files = BUILD / f"{name}.json", BUILD / f"{name}.md"
    for step in chosen:
        before = results.steps.get(step.name)
        if before is not None and before.state == "passed" and before.source == now and not options.again:
            print(f"{step.name}: passed on {before.date}", flush=True)
            continue
        left = until - time.monotonic()
        if left < LEAST_SECONDS:
            print(f"{step.name}: no time left; run the same command again", flush=True)
            continue
        result, machine = run(step, surroundings, min(step.seconds, left), options.rehearse)
        results.steps[step.name] = result
        results.machine |= machine
        save(results, *files)
        if options.copy is not None:
            options.copy.mkdir(parents=True, exist_ok=True)
            for file in (*files, BUILD / "gpu.log"):
                shutil.copy(file, options.copy)
        print(f"{step.name}: {result.state} after {result.seconds:.0f} s", flush=True)
        if result.tail:
            print(result.tail, flush=True)
        for figure in result.figures:
            print(f"  {figure.name}: {figure.text()} {figure.target()}", flush=True)


def main(arguments: list[str]) -> int:
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(
        prog="tools.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--step", action="append", choices=names, help="only this one; may be repeated")
    parser.add_argument(
        "--seconds", type=float, default=3600, help="for all steps together; the rest is left for later"
    )
    parser.add_argument("--again", action="store_true", help="also steps that passed already")
    parser.add_argument(
        "--copy", type=Path, metavar="FOLDER", help="copy results and log there after each step"
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="on the CPU, in small: tries the program, no figures"
    )
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("torch") is None:
        raise SystemExit(f"{sys.executable} has no torch: make gpu GPU_PYTHON=… names the Python that has it")
    if not options.rehearse:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit(
                f"make gpu needs a CUDA GPU, and torch {torch.__version__} of {sys.executable} sees none: "
                "ARGS=--rehearse tries the program on the CPU"
            )
    BUILD.mkdir(exist_ok=True)
    chosen = [step for step in STEPS if step.name in (options.step or names)]
    results = load(BUILD / ("gpu-rehearsal.json" if options.rehearse else "gpu.json"), options.rehearse)
    run_steps(chosen, results, options)
    states = {step.name: results.steps[step.name].state for step in chosen if step.name in results.steps}
    return 0 if len(states) == len(chosen) and set(states.values()) == {"passed"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
