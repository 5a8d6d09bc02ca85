"""Learning rates of the tasks: held-out losses of dense training at several rates, and at the one that the task has.

``python -m lab.benchmarks.rates`` trains with ``--factors`` times each task's rate and prints a table. A task whose
rate is far from the best one says little of what compression costs: below it, late gradients do no harm and larger
steps help, so a codec can seem to learn better than dense training does.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from torch import nn

from gravac_lab.simulate import pool
from gravac_lab.simulate.run import learn
from gravac_lab.tasks import make

TASKS = (
    "logistic",
    "logistic:optimizer=adamw",
    "lm",
    "lm:optimizer=adamw",
    "gpt:size=0.3m",
    "gpt:size=0.3m,optimizer=sgd",
    "resnet",
    "resnet:optimizer=adamw",
    "vgg",
    "vgg:optimizer=adamw",
)
"""Those of the committed tournament."""
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
POINTS = 6
"""How often the held-out loss is measured; only the last one counts."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One dense training. ``rate``: peak learning rate."""

    task: str
    rate: float
    ranks: int
    seed: int
    steps: int


def rate_of(task: str) -> float:
    """Return the peak learning rate that a task has."""
    optimizer = make(task).optimizer([nn.Parameter()])
    return float(optimizer.param_groups[0]["lr"])


def train(trial: Trial) -> dict[str, Any]:
    """Return the row of a trial: its fields, and the held-out loss after the last step."""
    named = f"{trial.task}{',' if ':' in trial.task else ':'}rate={trial.rate:g}"
    row = learn(named, "dense", trial.ranks, trial.seed, trial.steps, POINTS)
    return {
        "task": trial.task,
        "rate": trial.rate,
        "ranks": trial.ranks,
        "seed": trial.seed,
        "steps": trial.steps,
        "loss": row["curve"][-1][1],
    }


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a Markdown table: a line for each task, with the mean loss over seeds at each rate."""
    found: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        found.setdefault(row["task"], {}).setdefault(row["rate"], []).append(row["loss"])
    lines = ["| task | rate | loss above the best rate's | held-out losses by rate |", "|---|---:|---:|---|"]
    for task, rates in sorted(found.items()):
        losses = {rate: mean(values) for rate, values in sorted(rates.items())}
        own, best = rate_of(task), min(losses.values())
        above = f"{losses[own] / best - 1.0:+.1%}" if own in losses else "not measured"
        shown = ", ".join(f"{rate:g}: {loss:.3f}" for rate, loss in losses.items())
        lines.append(f"| `{task}` | {own:g} | {above} | {shown} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--factors", nargs="+", type=float, default=FACTORS, help="of the task's rate")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seeds", nargs="+", type=int, default=(1, 2))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2, help="trainings at the same time")
    parser.add_argument(
        "--out", type=Path, default=Path("rates.jsonl"), help="rows; those that it has are not repeated"
    )
    given = parser.parse_args()
    wanted = [
        Trial(task, float(f"{factor * rate_of(task):.4g}"), given.ranks, seed, given.steps)
        for task in given.tasks
        for factor in given.factors
        for seed in given.seeds
    ]
    known = {Trial(*(row[name] for name in Trial.__slots__)) for row in pool.read_lines(given.out)}
    left = [trial for trial in wanted if trial not in known]
    for number, row in enumerate(pool.append_rows(train, left, given.out, given.workers), 1):
        print(
            f"{number} of {len(left)}: {row['task']}, rate {row['rate']:g}: {row['loss']:.4f}",
            file=sys.stderr,
        )
    print("\n".join(table(pool.read_lines(given.out))))


if __name__ == "__main__":
    main()
