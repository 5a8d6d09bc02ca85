"""Runs of a tournament: tasks by plans by ranks by seeds, one row each, resumed where a file already has them.

``gravac bench tournament`` starts this program. It writes a JSON line ``{"progress": …}`` for each run on standard
output, and the rows to the file of ``--out``.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gravac_lab.programs.process import run_program
from gravac_lab.simulate import pool
from gravac_lab.simulate.plans import PlanError
from gravac_lab.simulate.run import chosen_plan, learn
from gravac_lab.tasks import TaskError, make

ALWAYS = ("dense", "alone")
"""Plans that are always run: without them a loss says nothing."""


@dataclass(frozen=True, slots=True)
class TournamentRun:
    """One run."""

    task: str
    plan: str
    ranks: int
    seed: int
    steps: int


def cells(
    tasks: Sequence[str], plans: Sequence[str], ranks: Sequence[int], seeds: Sequence[int], steps: int
) -> Iterator[TournamentRun]:
    """Yield every run, each task's ``dense`` and ``alone`` first.

    Raises:
        PlanError: A plan does not exist.
        TaskError: A task does not exist, or so many ranks cannot share its batch.
    """
    every = list(dict.fromkeys((*ALWAYS, *plans)))
    for plan in every:
        chosen_plan(plan)
    for task in tasks:
        recipe = make(task)
        for size in ranks:
            recipe.batches(0, size, 0)
    for seed in seeds:
        for size in ranks:
            for plan in every:
                yield from (TournamentRun(task, plan, size, seed, steps) for task in tasks)


def done(path: Path) -> set[TournamentRun]:
    """Return the runs that a file of rows has."""
    return {
        TournamentRun(row["task"], row["plan"], row["ranks"], row["seed"], row["steps"])
        for row in pool.read_lines(path)
    }


def run(wanted: Sequence[TournamentRun], path: Path, workers: int) -> Iterator[str]:
    """Run what ``path`` lacks and append a row for each, in the order in which they end.

    Yields:
        A line of progress at the start and after each run.
    """
    known = done(path)
    left = [cell for cell in wanted if cell not in known]
    yield f"{len(left)} of {len(wanted)} runs to do"
    for number, row in enumerate(pool.append_rows(_learn, left, path, workers), 1):
        yield (
            f"{number} of {len(left)}: {row['task']}, {row['plan']}, {row['ranks']} ranks, seed {row['seed']}: "
            f"held-out loss {row['curve'][-1][1]:.4f}, {row['cpu_seconds']:.0f} s"
        )


def _learn(cell: TournamentRun) -> dict[str, Any]:
    return learn(**asdict(cell))


def main() -> None:
    parser = argparse.ArgumentParser(prog="gravac_lab.simulate.tournament", description=__doc__)
    parser.add_argument("--tasks", nargs="+", required=True)
    parser.add_argument("--plans", nargs="+", default=[])
    parser.add_argument("--ranks", nargs="+", type=int, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    try:
        wanted = list(cells(given.tasks, given.plans, given.ranks, given.seeds, given.steps))
    except (PlanError, TaskError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    run_program(lambda _: ({"progress": line} for line in run(wanted, given.out, given.workers)), given)


if __name__ == "__main__":
    main()
