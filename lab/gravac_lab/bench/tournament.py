"""The tournament: tasks by plans by ranks by seeds, learned with simulated ranks, and what the rows say."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gravac_lab.bench.program import run_program
from gravac_lab.bench.ranks import Progress
from gravac_lab.bench.results import describe_machine
from gravac_lab.tournament import Run, Standing, read_rows, standings
from gravac_lab.tournament.curves import TARGET
from gravac_lab.tournament.standings import StepSeconds

CORES_PER_RUN = 2
"""Cores for each of the runs at the same time."""
PRESETS = {
    "frontier": (
        "bf16@2",
        "int8@4",
        "nearest:levels=39@5",
        "nearest:levels=15@7",
        "nearest:levels=7@10",
        "nearest:levels=3@17",
        "nearest:levels=2@25",
        "topk+bf16@10",
        "topk+bf16@100",
    ),
    "rivals": (
        "fp16@2",
        "powersgd:rank=4@20",
        "topk@10",
        "topk@100",
        "topk@1000",
        "randomk@10",
        "dgc@100",
        "redsync@100",
        "qsgd:bits=2,block=64@16",
    ),
}
"""Plans by name: ``frontier`` are those that auto chooses from, ``rivals`` what others use."""
SPREADS = (
    "loss",
    "above_dense",
    "efficiency",
    "retained",
    "backlog",
    "progress",
    "gain",
    "seconds",
    "speedup",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tournament:
    """What to run; ``plans`` may name presets. Runs that ``out`` has already are not repeated."""

    tasks: Sequence[str]
    plans: Sequence[str]
    ranks: Sequence[int]
    seeds: Sequence[int]
    steps: int
    out: Path

    def every_plan(self) -> list[str]:
        """Return the plans, presets replaced by theirs, each once."""
        return list(dict.fromkeys(plan for text in self.plans for plan in PRESETS.get(text, (text,))))


def run(tournament: Tournament, progress: Progress) -> dict[str, Any]:
    """Run what is missing, and summarize the whole file.

    Raises:
        Refused: A task or plan does not exist.
        ProgramFailed: A run failed. The rows of the others are kept.
        RowError: The file holds something else.
        OSError: The file cannot be read or written.
    """
    described = describe_machine()
    workers = max(1, len(os.sched_getaffinity(0)) // CORES_PER_RUN)
    options: list[object] = ["--out", tournament.out, "--workers", workers]
    options += ["--steps", tournament.steps, "--tasks", *tournament.tasks]
    options += [
        "--plans",
        *tournament.every_plan(),
        "--ranks",
        *tournament.ranks,
        "--seeds",
        *tournament.seeds,
    ]
    tournament.out.parent.mkdir(parents=True, exist_ok=True)
    run_program("gravac_lab.simulate.tournament", options, progress)
    return {"machine": described, **summary(read_rows([tournament.out]))}


def summary(
    runs: Sequence[Run], step_seconds: StepSeconds | None = None, target: float = TARGET
) -> dict[str, Any]:
    """Return a row for each task, ranks and plan as plain data: median, low, high and count over seeds."""
    return {
        "benchmark": "tournament",
        "target": target,
        "rows": [_row(standing) for standing in standings(runs, step_seconds, target)],
    }


def _row(standing: Standing) -> dict[str, Any]:
    row: dict[str, Any] = {
        "task": standing.task,
        "ranks": standing.ranks,
        "steps": standing.steps,
        "plan": standing.plan,
        "optimizer": standing.optimizer,
        "seeds": sorted(run.seed for run in standing.runs),
        "wire_cf": standing.wire_cf,
        "step_seconds": standing.step_seconds,
        "reached": standing.reached,
    }
    for name in SPREADS:
        spread = getattr(standing, name)
        row[name] = None if spread is None else asdict(spread)
    return row
