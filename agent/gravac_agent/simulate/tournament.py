"""Runs of a tournament: tasks by plans by ranks by seeds, one row each, resumed where a file already has them."""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from gravac_agent.simulate.plans import parse
from gravac_agent.simulate.run import learn
from gravac_agent.tasks import make

ALWAYS = ("dense", "alone")
"""Plans that are always run: without them a loss says nothing."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    task: str
    plan: str
    ranks: int
    seed: int
    steps: int


def cells(
    tasks: Sequence[str], plans: Sequence[str], ranks: Sequence[int], seeds: Sequence[int], steps: int
) -> Iterator[Cell]:
    """Yield every run, each task's ``dense`` and ``alone`` first.

    Raises:
        ValueError: A task or plan does not exist.
    """
    every = list(dict.fromkeys((*ALWAYS, *plans)))
    for plan in every:
        parse(plan)
    for task in tasks:
        make(task)
    for seed in seeds:
        for size in ranks:
            for plan in every:
                yield from (Cell(task, plan, size, seed, steps) for task in tasks)


def done(path: Path) -> set[Cell]:
    """Return the runs that a file of rows has. A last line that was cut off is removed, as its run is to be repeated."""
    if not path.exists():
        return set()
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    rows = (json.loads(line) for line in whole.splitlines())
    return {Cell(row["task"], row["plan"], row["ranks"], row["seed"], row["steps"]) for row in rows}


def run(wanted: Sequence[Cell], path: Path, workers: int) -> None:
    """Run what ``path`` lacks and append a row for each, in the order in which they end."""
    known = done(path)
    left = [cell for cell in wanted if cell not in known]
    print(f"{len(left)} of {len(wanted)} runs to do", flush=True)
    with ProcessPoolExecutor(workers, get_context("spawn"), _one_thread) as pool, path.open("a") as out:
        for ended in as_completed(pool.submit(_learn, cell) for cell in left):
            row = ended.result()
            out.write(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n")
            out.flush()
            last = row["curve"][-1]
            print(
                f"{row['task']} {row['plan']} ranks {row['ranks']} seed {row['seed']}: held-out loss {last[1]:.4f}, "
                f"{row['cpu_seconds']:.0f} s",
                flush=True,
            )


def _learn(cell: Cell) -> dict[str, Any]:
    return learn(**asdict(cell))


def _one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="gravac_agent.simulate.tournament", description=__doc__)
    parser.add_argument("--tasks", nargs="+", required=True)
    parser.add_argument("--plans", nargs="+", required=True)
    parser.add_argument("--ranks", nargs="+", type=int, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    run(
        list(cells(given.tasks, given.plans, given.ranks, given.seeds, given.steps)), given.out, given.workers
    )


if __name__ == "__main__":
    main()
