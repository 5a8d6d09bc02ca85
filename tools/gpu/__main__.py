"""Check gravac on a GPU, step by step: ``make gpu``.

    python -m tools.gpu [--step NAME ...] [--seconds N] [--again] [--copy FOLDER] [--rehearse]

Runs the steps that have not passed yet, those first that were not tried, and writes build/gpu.json and build/gpu.md
while they run and after each. On a machine that lacks packages it installs the wheels of `make gpu-wheels` into
build/gpu-site first, and it takes the kernels of `make gpu-kernels` from build/gpu-kernels. It needs only Python and
torch itself.
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
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.gpu import ahead
from tools.gpu.figures import Figure, figures_in, machine_in
from tools.gpu.outcomes import outcomes

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
NEEDED = ("pydantic", "pydantic_settings", "fastapi", "uvicorn", "prometheus_client", "click", "rich")
NEEDED_BY_TESTS = ("pytest", "pytest_timeout", "xdist", "hypothesis")
SOURCES = (
    "gravac",
    "agent",
    "observe",
    "tools/gpu",
    "tests/gpu",
    "tests/gravac/kernels/cuda",
    "tests/support",
)
STEPS = {
    "start": ("Start", 90),
    "plans": ("Each plan against the CPU, on one rank and on two", 120),
    "host": ("Host time and launches", 60),
    "cost": ("A step against plain DDP", 60),
    "observe": ("gravac observe on two ranks", 40),
    "kernels": ("Kernels against torch.topk and a copy", 30),
    "gpt": ("Loss of a GPT on two ranks over NCCL and sockets", 240),
    "fsdp": ("FSDP2 on two ranks", 60),
    "tests": ("Other tests", 140),
}
"""Names, titles and most seconds, in the order in which they are worth a GPU's time. Together 14 minutes."""
TESTS = {
    "plans": ["tests/gpu/test_plans.py"],
    "fsdp": ["tests/gpu/test_sharded.py"],
    "tests": [
        "tests/gpu/test_one_rank.py",
        "tests/gpu/test_two_ranks.py",
        "tests/gravac/kernels/cuda",
    ],
}
"""The tests that a step runs; the other steps are those of ``tools.gpu.step``."""
LAST_SECONDS = 5
"""For a program whose time is up, until it is killed."""
SLOWER = 5
"""How much longer a rehearsal may take, as it may be on few and busy cores."""
POLL_SECONDS = 1.0
"""After which what a step has found so far is written again."""
LEAST_SECONDS = 20
"""A step is not begun with less time than this."""
TAIL = 4000
"""Characters of output that are kept of a step that did not pass."""


def environment() -> dict[str, str]:
    """Return the variables that a step's program gets: this checkout first, then the wheels if packages are missing."""
    paths = [
        str(ROOT),
        str(ROOT / "agent"),
        str(ROOT / "controller"),
        str(ROOT / "observe"),
        str(ROOT / "lab"),
    ]
    ahead.settle(ahead.FOLDER)
    if missing := [name for name in (*NEEDED, *NEEDED_BY_TESTS) if importlib.util.find_spec(name) is None]:
        _install(missing)
        paths.append(str(BUILD / "gpu-site"))
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "TRITON_CACHE_DIR": str(ahead.FOLDER),
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


def command_of(step: str, seconds: float, rehearse: bool) -> list[str]:
    """Return the program of a step that has so many seconds. A rehearsal is small and on the CPU."""
    if step not in TESTS:
        small = ["--device=cpu", "--small"] if rehearse else []
        limits = [f"--seconds={seconds:.0f}", f"--begun={time.time()}"]
        return [sys.executable, "-m", "tools.gpu.step", step, *limits, *small]
    # Those of kernels have no processes of their own and no mark: they run on a GPU where there is one.
    chosen = "not gpu" if rehearse else "gpu or not distributed"
    program = [sys.executable, "-m", "pytest", "-v", "-s", f"-n{min(6, os.cpu_count() or 1)}"]
    return [
        *program,
        "-p",
        "tools.gpu.outcomes",
        f"--outcomes={BUILD / 'gpu-outcomes'}",
        *(name for name in TESTS[step] if not rehearse or name.startswith("tests/gpu")),
        "-m",
        chosen,
    ]


def run(
    step: str,
    surroundings: dict[str, str],
    seconds: float,
    rehearse: bool,
    write: Callable[[dict[str, Any]], None],
) -> None:
    """Run a step, and kill it and all it started when time is up.

    Args:
        step: Its name.
        surroundings: Variables of its program.
        seconds: Until it is killed.
        rehearse: Whether it is small and on the CPU.
        write: Called with what the step has found, for JSON, again and again while it runs and when it has ended.
    """
    reported, begun, log = BUILD / "gpu-outcomes", time.monotonic(), BUILD / "gpu.log"
    reported.unlink(missing_ok=True)
    made = source()

    def found(state: str) -> dict[str, Any]:
        output = log.read_bytes()[start:].decode(errors="replace")
        lines = output.splitlines()[
            : None if output.endswith("\n") else -1
        ]  # the last one may be half written
        tests, failures = outcomes(reported)
        return {
            "state": state,
            "seconds": time.monotonic() - begun,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "source": made,
            "machine": machine_in(lines),
            "figures": [asdict(figure) for figure in figures_in(lines)],
            "tests": tests if step in TESTS else {},
            "failures": failures,
            "tail": "" if state == "passed" else output[-TAIL:],
        }

    with log.open("ab") as stream:
        start, until = stream.tell(), begun + seconds - LAST_SECONDS
        process = subprocess.Popen(
            command_of(step, seconds - LAST_SECONDS, rehearse),
            cwd=ROOT,
            env=surroundings,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = None
            while code is None and (left := until - time.monotonic()) > 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(min(POLL_SECONDS, left))
                write(found("interrupted"))  # what is left if this program is killed, too
            if code is None:
                process.send_signal(signal.SIGINT)  # pytest then says where it was
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LAST_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    result = found("passed" if code == 0 else "timed out" if code is None else "failed")
    if code == 0 and step in TESTS and not result["tests"]["passed"]:
        result["state"] = "failed"  # all skipped: nothing was shown
    write(result)


def table(steps: dict[str, Any], rehearsal: bool) -> Iterator[str]:
    """Yield the lines of the page that shows the results."""
    yield "# Rehearsal on a CPU: these figures say nothing about a GPU" if rehearsal else "# Figures of a GPU"
    yield from ("", "Written by `make gpu`. Medians; quartiles in parentheses.", "", "| | |", "|---|---|")
    machine = steps.get("start", {}).get("machine", {})
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
    add(
        "--seconds",
        type=float,
        default=3600,
        help="for all steps of this command; the rest is left for later",
    )
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
    file = BUILD / ("gpu-rehearsal.json" if options.rehearse else "gpu.json")
    steps: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    surroundings, until, now = environment(), time.monotonic() + options.seconds, source()
    chosen = [step for step in STEPS if step in (options.step or STEPS)]
    # One that failed waits until the others have had their turn.
    chosen.sort(key=lambda step: steps.get(step, {}).get("source") == now)
    for step in chosen:
        before = steps.get(step, {})
        if before.get("state") == "passed" and before["source"] == now and not options.again:
            print(f"{step}: passed on {before['date']}", flush=True)
            continue
        left = until - time.monotonic()
        if left < LEAST_SECONDS:
            print(f"{step}: no time left; run the same command again", flush=True)
            continue

        def write(result: dict[str, Any], step: str = step) -> None:
            steps[step] = result
            _write(file, steps, options)

        limit = STEPS[step][1] * (SLOWER if options.rehearse else 1)
        run(step, surroundings, min(limit, left), options.rehearse, write)
        result = steps[step]
        print(
            f"{step}: {result['state']} after {result['seconds']:.0f} s", result["failures"] or "", flush=True
        )
        print(result["tail"], end="", flush=True)
        for figure in (Figure(**figure) for figure in result["figures"]):
            print(f"  {figure.name}: {figure.text()} {figure.target()}", flush=True)
    return 0 if {steps.get(step, {}).get("state") for step in chosen} == {"passed"} else 1


def _write(file: Path, steps: dict[str, Any], options: argparse.Namespace) -> None:
    """Write results and page, each as a whole, and copy them with the log where that is asked for."""
    for path, text in (
        (file, json.dumps(steps, indent=1)),
        (file.with_suffix(".md"), "\n".join(table(steps, options.rehearse))),
    ):
        path.with_suffix(".new").write_text(text + "\n")
        path.with_suffix(".new").replace(path)
        if options.copy is not None:
            options.copy.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, options.copy)
    if options.copy is not None:
        shutil.copy(BUILD / "gpu.log", options.copy)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
