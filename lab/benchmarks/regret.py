"""Regret on real learning: the time to target of ``auto`` against static plans in hindsight, rivals, dense and alone.

    python -m lab.benchmarks.regret run --rows ROWS --out jobs.jsonl       simulated jobs of policies: hours, resumable
    python -m lab.benchmarks.regret table --rows ROWS --jobs jobs.jsonl    markdown tables: seconds

What a static plan does to learning does not depend on the link: ROWS, of ``gravac bench tournament``, say it, and the
time model gives the duration of a step. A policy decides by step times, so each of its jobs is simulated on each link:
real learning, step times of the same model, with the same seeds and as many steps. The target is the held-out loss that
dense has after a share of its steps.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from regret_parts import tables
from regret_parts.jobs import JobCell, JobRow, read_jobs, run_jobs
from regret_parts.links import COMPUTE_SECONDS, LINKS, compute_seconds

from gravac import policies
from gravac_lab.tournament import Run, read_rows
from gravac_lab.tournament.regret import EVERY, Cell, cell
from gravac_lab.tournament.rows import DENSE
from gravac_lab.tournament.run_steps import chosen_collective, step_seconds

POLICIES = ("auto", "auto:bound=1")
TARGET = 0.8
"""A plan that loses a little still reaches what dense has after this share of its steps."""


def wanted(given: argparse.Namespace, runs: Sequence[Run]) -> list[JobCell]:
    """Return the jobs whose dense run the rows have, seed by seed."""
    steps = {(run.task, run.ranks, run.seed): run.steps for run in runs if run.plan == DENSE}
    tasks = given.tasks or list(dict.fromkeys(run.task for run in runs if run.task in COMPUTE_SECONDS))
    found = []
    for seed in given.seeds:
        for ranks in given.ranks:
            for link in given.links:
                for policy in given.policies:
                    for task in tasks:
                        if (task, ranks, seed) in steps:
                            compute = given.compute or compute_seconds(task, ranks)
                            length = steps[task, ranks, seed]
                            found.append(JobCell(task, policy, ranks, seed, length, link, compute))
    return found


def cells(runs: Sequence[Run], rows: Sequence[JobRow], target: float) -> tuple[list[Cell], list[str]]:
    """Return what can be compared, and a line on everything that cannot."""
    groups: dict[tuple[str, int, int, str, float], list[JobRow]] = {}
    for row in rows:
        key = row.cell.task, row.cell.ranks, row.cell.steps, row.cell.link, row.cell.compute_seconds
        groups.setdefault(key, []).append(row)
    found: list[Cell] = []
    notes: list[str] = []
    for members in groups.values():
        one = compared(runs, members, target, notes)
        if one is not None:
            found.append(one)
    order = list(LINKS)
    return sorted(found, key=lambda one: (order.index(one.link), one.ranks, one.task)), notes


def compared(runs: Sequence[Run], members: Sequence[JobRow], target: float, notes: list[str]) -> Cell | None:
    """Return the cell of some jobs that differ in policy and seed only. Adds to ``notes`` what is left out."""
    one = members[0].cell
    network, times, known = LINKS[one.link].network, {}, []
    for run in runs:
        if (run.task, run.ranks, run.steps) != (one.task, one.ranks, one.steps):
            continue
        if run.collective and run.collective != chosen_collective(run, network):
            continue  # with their default setting agents do not exchange so on this link
        try:
            times[run.plan, run.seed] = step_seconds(run, network, one.compute_seconds, ring_ticks=True)
            known.append(run)
        except ValueError as error:
            notes.append(f"{one.task}, {run.plan}: left out, as its step time is not known ({error})")
    found = cell(
        one.task,
        one.ranks,
        one.link,
        known,
        [row.job for row in members],
        lambda run: times[run.plan, run.seed],
        target,
    )
    if found is None:
        notes.append(
            f"{one.task}, {one.ranks} ranks, {one.steps} steps: no row of dense with the seed of a job"
        )
    return found


def bound_of(policy: str) -> float:
    """Return the loss of efficiency that a policy accepts; 1 where it has no bound."""
    bound = policies.parse(policy).spec().settings.get("bound")
    return bound if isinstance(bound, float) else EVERY


def run(given: argparse.Namespace) -> None:
    for policy in given.policies:
        policies.parse(policy)
    for line in run_jobs(wanted(given, read_rows(given.rows)), given.out, given.workers):
        print(line, flush=True)


def table(given: argparse.Namespace) -> None:
    compared, notes = cells(read_rows(given.rows), read_jobs(given.jobs), given.target)
    if not compared:
        sys.exit("\n".join(("No job can be compared.", *notes)))
    names = list(dict.fromkeys(name for pair in compared for name in pair.jobs))
    sections = [tables.regrets(compared, name, bound_of(name)) for name in names]
    sections += [tables.rivals(compared, f"`{name}`", tables.always(name)) for name in names]
    sections.append(tables.learning(compared, names))
    sections += [tables.choices(compared, name, bound_of(name)) for name in names]
    print(f"Target: the held-out loss that dense has after {given.target:.0%} of its steps.\n")
    for section in sections:
        print("\n".join(section), end="\n\n")
    for note in dict.fromkeys(notes):
        print(note, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    jobs = commands.add_parser("run", help="run simulated jobs")
    jobs.add_argument("--rows", type=Path, nargs="+", required=True, help="rows of tournaments")
    jobs.add_argument(
        "--out", type=Path, required=True, help="file of jobs; those that it has are not repeated"
    )
    jobs.add_argument("--policies", nargs="+", default=POLICIES)
    jobs.add_argument("--tasks", nargs="+", help="default: those of the rows whose computation was measured")
    jobs.add_argument("--ranks", nargs="+", type=int, default=(2, 4, 8))
    jobs.add_argument("--seeds", nargs="+", type=int, default=(1,))
    jobs.add_argument("--links", nargs="+", choices=LINKS, default=tuple(LINKS))
    jobs.add_argument("--compute", type=float, help="seconds of a step of one rank; default: as measured")
    jobs.add_argument("--workers", type=int, default=2, help="jobs at the same time")
    jobs.set_defaults(action=run)
    shown = commands.add_parser("table", help="print tables")
    shown.add_argument("--rows", type=Path, nargs="+", required=True, help="rows of tournaments")
    shown.add_argument("--jobs", type=Path, required=True, help="file of jobs")
    shown.add_argument("--target", type=float, default=TARGET, help="share of the steps of dense")
    shown.set_defaults(action=table)
    given = parser.parse_args()
    given.action(given)


if __name__ == "__main__":
    main()
