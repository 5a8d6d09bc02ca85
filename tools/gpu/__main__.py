"""Check gravac on a GPU, step by step: ``make gpu``.

    python -m tools.gpu [--step NAME ...] [--seconds N] [--again] [--copy FOLDER] [--rehearse]

Runs the steps that have not passed yet, and writes build/gpu.json and build/gpu.md after each. On a machine that lacks
packages it installs the wheels of `make gpu-wheels` into build/gpu-site first. It needs only Python and torch itself.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.gpu.figures import Figure, figures_in, machine_in

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
NEEDED = ("pydantic", "pydantic_settings", "fastapi", "uvicorn", "prometheus_client", "click", "rich")
NEEDED_BY_TESTS = ("pytest", "pytest_timeout", "xdist", "hypothesis")
SOURCES = ("gravac", "agent", "lab/benchmarks", "tools/gpu", "tests/gpu", "tests/support")
STEPS = {
    "machine": ("The machine", 120),
    "topk": ("Top-k", 300),
    "gpt": ("A step against plain DDP", 540),
    "tests": ("Tests", 590),
    "host": ("Host time", 240),
    "memory": ("Memory", 240),
    "loopback": ("Steps of two ranks over NCCL and sockets", 300),
    "kernels": ("Other kernels", 240),
}
"""Names, titles and most seconds, in the order in which they are worth a GPU's time. All but the tests are parts of
``lab/benchmarks/gpu.py``."""
TESTS = ("tests/gpu", "tests/support/maths/cuda_kernels.py")
LAST_SECONDS = 10
"""For a program whose time is up, until it is killed."""
LEAST_SECONDS = 30
"""A step is not begun with less time than this."""
TAIL = 4000
"""Characters of output that are kept of a step that did not pass."""


def environment() -> dict[str, str]:
    """Return the variables that a step's program gets: this checkout first, then the wheels if packages are missing."""
    paths = [str(ROOT), str(ROOT / "agent"), str(ROOT / "controller"), str(ROOT / "lab")]
    if missing := [name for name in (*NEEDED, *NEEDED_BY_TESTS) if importlib.util.find_spec(name) is None]:
        _install(missing)
        paths.append(str(BUILD / "gpu-site"))
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        # Plugins that the machine has for others change nothing, and what they warn of is no error.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "-p pytest_timeout -p xdist -p no:cacheprovider -W default",
    }


def _install(missing: list[str]) -> None:
    wheels, site = sorted((BUILD / "gpu-wheels").glob("*.whl")), BUILD / "gpu-site"
    if not wheels:
        raise SystemExit(
            f"this Python lacks {', '.join(missing)}, and {BUILD / 'gpu-wheels'} is empty: run `make gpu-wheels` on a "
            "machine with a network and bring that folder along"
        )
    stamp, names = site / ".installed", "\n".join(wheel.name for wheel in wheels)
    if stamp.exists() and stamp.read_text() == names:
        return
    shutil.rmtree(site, ignore_errors=True)
    options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", f"--target={site}"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *map(str, wheels)], check=True)
    stamp.write_text(names)


def source() -> str:
    """Return a digest of the program's files, so that results of different versions can be told apart."""
    found = hashlib.sha256()
    for folder in SOURCES:
        for file in sorted((ROOT / folder).rglob("*.py")):
            found.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return found.hexdigest()[:12]


def command_of(step: str, report: Path, rehearse: bool) -> list[str]:
    """Return the program of a step. A rehearsal is small and on the CPU."""
    if step != "tests":
        small = ["--device=cpu", "--small", "--pairs=2"] if rehearse else []
        return [sys.executable, "-m", "lab.benchmarks.gpu", "--lines", step, *small]
    workers = min(8, os.cpu_count() or 1)
    # Those of kernels have no processes of their own and no mark: they run on a GPU where there is one.
    chosen = [TESTS[0], "-m", "not gpu"] if rehearse else [*TESTS, "-m", "gpu or not distributed"]
    return [sys.executable, "-m", "pytest", "-v", "-s", f"-n{workers}", f"--junitxml={report}", *chosen]


def run(step: str, surroundings: dict[str, str], seconds: float, rehearse: bool) -> dict[str, Any]:
    """Run a step, and kill it and all it started when time is up. Returns its result, for JSON."""
    report, begun, log = BUILD / "gpu-tests.xml", time.monotonic(), BUILD / "gpu.log"
    report.unlink(missing_ok=True)
    with log.open("ab") as stream:
        start = stream.tell()
        process = subprocess.Popen(
            command_of(step, report, rehearse),
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
            process.send_signal(signal.SIGINT)  # pytest then writes down what it has found so far
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LAST_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    output = log.read_bytes()[start:].decode(errors="replace")
    result: dict[str, Any] = {
        "state": "passed" if code == 0 else "timed out" if code is None else "failed",
        "seconds": time.monotonic() - begun,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": source(),
        "machine": machine_in(output.splitlines()),
        "figures": [asdict(figure) for figure in figures_in(output.splitlines())],
        "tests": {},
        "failures": {},
        "tail": "" if code == 0 else output[-TAIL:],
    }
    if report.exists():
        result["tests"], result["failures"] = outcomes(report)
        if code == 0 and not result["tests"]["passed"]:
            result["state"] = "failed"  # all skipped: nothing was shown
    return result


def outcomes(report: Path) -> tuple[dict[str, int], dict[str, str]]:
    """Return the numbers of tests by outcome, and the first line of why tests failed, from pytest's XML."""
    numbers, failures = {"passed": 0, "failed": 0, "skipped": 0}, {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = next((found for kind in ("failure", "error") if (found := case.find(kind)) is not None), None)
        if bad is not None:
            failures[case.get("name", "")] = (bad.get("message") or "").partition("\n")[0][:300]
        skipped = case.find("skipped") is not None
        numbers["failed" if bad is not None else "skipped" if skipped else "passed"] += 1
    return numbers, failures


def table(steps: dict[str, Any], rehearsal: bool) -> Iterator[str]:
    """Yield the lines of the page that shows the results."""
    yield "# Rehearsal on a CPU: these figures say nothing about a GPU" if rehearsal else "# Figures of a GPU"
    yield from ("", "Written by `make gpu`. Medians; quartiles in parentheses.", "", "| | |", "|---|---|")
    machine = steps.get("machine", {}).get("machine", {})
    yield from (f"| {name} | {value} |" for name, value in machine.items())
    for name, (title, _) in STEPS.items():
        yield from ("", f"## {title}", "")
        if name not in steps:
            yield f"Not run: `make gpu STEP={name}`."
            continue
        result = steps[name]
        counts = ", ".join(f"{count} {kind}" for kind, count in result["tests"].items() if count)
        said = f"{result['date'][:10]}, version {result['source']}, {result['seconds']:.0f} s: {result['state']}."
        yield said + (f" Tests: {counts}." if counts else "")
        yield from (f"- **{test}**: {why}" for test, why in result["failures"].items())
        figures = [Figure(**figure) for figure in result["figures"]]
        if figures:
            yield from ("", "| figure | value | target |", "|---|---|---|")
        yield from (f"| {figure.name} | {figure.text()} | {figure.target()} |" for figure in figures)
        if result["tail"]:
            yield from ("", "```", *result["tail"].replace("```", "'''").splitlines()[-15:], "```")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tools.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--step", action="append", choices=list(STEPS), help="only this one; may be repeated")
    add("--seconds", type=float, default=3600, help="for all steps together; the rest is left for later")
    add("--again", action="store_true", help="also steps that passed already")
    add("--copy", type=Path, metavar="FOLDER", help="copy results and log there after each step")
    add("--rehearse", action="store_true", help="on the CPU, in small: tries the program, no figures")
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
    chosen = [step for step in STEPS if step in (options.step or STEPS)]
    file = BUILD / ("gpu-rehearsal.json" if options.rehearse else "gpu.json")
    steps: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    surroundings, until, now = environment(), time.monotonic() + options.seconds, source()
    for step in chosen:
        before = steps.get(step, {})
        if before.get("state") == "passed" and before["source"] == now and not options.again:
            print(f"{step}: passed on {before['date']}", flush=True)
            continue
        left = until - time.monotonic()
        if left < LEAST_SECONDS:
            print(f"{step}: no time left; run the same command again", flush=True)
            continue
        result = steps[step] = run(
            step, surroundings, min(STEPS[step][1], left) - LAST_SECONDS, options.rehearse
        )
        for path, text in (
            (file, json.dumps(steps, indent=1)),
            (file.with_suffix(".md"), "\n".join(table(steps, options.rehearse))),
        ):
            path.with_suffix(".new").write_text(text + "\n")
            path.with_suffix(".new").replace(path)  # a run that is killed leaves whole files
            if options.copy is not None:
                options.copy.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, options.copy)
        if options.copy is not None:
            shutil.copy(BUILD / "gpu.log", options.copy)
        print(
            f"{step}: {result['state']} after {result['seconds']:.0f} s", result["failures"] or "", flush=True
        )
        print(result["tail"], end="", flush=True)
        for figure in (Figure(**figure) for figure in result["figures"]):
            print(f"  {figure.name}: {figure.text()} {figure.target()}", flush=True)
    return 0 if {steps.get(step, {}).get("state") for step in chosen} == {"passed"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
