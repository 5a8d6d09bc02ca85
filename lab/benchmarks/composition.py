"""Whether curves at equal steps, times the duration of a step, give the time to target of a whole run.

    sudo .venv/bin/python -m lab.benchmarks.composition [--tasks TASK …] [--links RATE …] [--plans PLAN …] [--steps N]

A whole run is real: two ranks on hosts with shaped links (``gravac bench train --curve``). Its time to target is
compared with steps to target of the simulated run of the same task, plan and seed, times the duration of a step: as the
time model predicts it from the computation of a step that ``none`` measured, and as the whole run measured it.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gravac.whatif.nominal import link
from gravac_lab.bench.network import parse_rate
from gravac_lab.tournament import read_rows
from gravac_lab.tournament.curves import curve_of, seconds_to, target_level
from gravac_lab.tournament.rows import DENSE, Run
from gravac_lab.tournament.run_steps import step_seconds

RANKS, SEED = 2, 1
NONE = "none"


def method(plan: str) -> str:
    """Return what ``gravac bench train`` calls a plan."""
    if plan == DENSE:
        return plan
    codec, _, cf = plan.rpartition("@")
    return f"agent/{codec}//static:cf={cf}"


def whole_runs(task: str, rate: str, plans: Sequence[str], steps: int, block: int) -> dict[str, Any]:
    """Return the rows of ``gravac bench train`` by plan, ``none`` among them."""
    methods = {NONE: NONE} | {plan: method(plan) for plan in plans}
    words = ["--link", rate, "--task", task, "--steps", str(steps), "--block", str(block), "--warmup", "3"]
    words += [
        "--seed",
        str(SEED),
        "--heldout",
        "64",
        "--curve",
        "--json",
        "--methods",
        " ".join(methods.values()),
    ]
    command = [str(Path(sys.executable).parent / "gravac"), "bench", "train", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    return {plan: rows[name] for plan, name in methods.items()}


def simulated(task: str, plans: Sequence[str], steps: int, out: Path) -> dict[str, Run]:
    """Return the simulated runs by plan, learned now unless ``out`` has them."""
    words = ["--tasks", task, "--plans", *plans, "--ranks", str(RANKS), "--seeds", str(SEED)]
    command = [sys.executable, "-m", "gravac_lab.simulate.tournament", *words]
    command += ["--steps", str(steps), "--out", str(out), "--workers", "1"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=True)
    return {run.plan: run for run in read_rows([out]) if run.task == task and run.steps == steps}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=["lm:size=1m", "gpt:size=0.5m"])
    parser.add_argument("--links", nargs="+", default=["30mbit", "100mbit"])
    parser.add_argument("--plans", nargs="+", default=[DENSE, "nearest:levels=7@10", "topk+bf16@10"])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--block", type=int, default=12)
    parser.add_argument("--target", type=float, default=0.8, help="share of the steps of dense")
    parser.add_argument("--out", type=Path, required=True, help="file of simulated runs")
    given = parser.parse_args()
    heads = ("task", "link", "plan", "whole run", "predicted steps", "ratio", "measured steps", "ratio")
    print("| " + " | ".join(heads) + " |\n|---|---|---|" + "---:|" * (len(heads) - 3))
    off: dict[str, list[float]] = {"predicted": [], "measured": []}
    for task in given.tasks:
        runs = simulated(task, given.plans, given.steps, given.out)
        level = target_level(runs[DENSE].curve, given.target)
        for rate in given.links:
            bits = parse_rate(rate)
            if bits is None:
                parser.error(f"--links {rate}: give a bandwidth, such as 100mbit")
            rows = whole_runs(task, rate, given.plans, given.steps, given.block)
            compute = rows[NONE]["seconds"]
            for plan in given.plans:
                whole = curve_of(rows[plan]["curve"], 1, 2).reaches(level)
                steps = {
                    "predicted": step_seconds(runs[plan], link(bits), compute),
                    "measured": rows[plan]["seconds"],
                }
                cells = [f"| {task} | {rate} | {plan} | {_seconds(whole)}"]
                for name, seconds in steps.items():
                    found = seconds_to(level, runs[plan].curve, seconds)
                    ratio = None if whole is None or found is None else found / whole
                    if ratio is not None:
                        off[name].append(abs(ratio - 1.0))
                    cells.append(f"{_seconds(found)} | {'–' if ratio is None else f'{ratio:.2f}'}")
                print(" | ".join(cells) + " |", flush=True)
    for name, values in off.items():
        near = sum(value <= 0.1 for value in values)
        print(
            f"\nWith {name} steps: off by {median(values):.1%} in the median, at most {max(values):.1%}, within "
            f"10 % in {near} of {len(values)} cells."
        )


def _seconds(value: float | None) -> str:
    return "not reached" if value is None else f"{value:.1f} s"


if __name__ == "__main__":
    main()
