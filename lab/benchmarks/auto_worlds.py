"""What the auto policy loses in worlds that lie to it: by trials, by plans outside the bound, against the best plan.

A pure world each, drawn at random: links x ranks x compute times x optimizers, with one adversity or two. A run has 600
steps, every fourth 150. The bound is the default.

    python -m lab.benchmarks.auto_worlds [--worlds N] [--workers N] [--seed N] [--only ADVERSITY] [--repeat WORLD]
"""

import argparse
import dataclasses
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from random import Random
from statistics import median

from gravac.policies import Plan
from gravac.signals.risk import ACCEPTED
from tools.harness.plan_world import Job, World

KINDS = ("sgd", "adam", "adam-aged", "adam-low-beta")
STEPS, FEW_STEPS = 600, 150
SETTLES = 3
"""Windows under a plan outside the bound after which what it loses counts: the third one after that which showed it."""
ADVERSITIES: dict[str, Callable[[Random, World], dict[str, object]]] = {
    "none": lambda draw, world: {},
    "bucket": lambda draw, world: {"burst": _between(draw, 256e3, max(1e6, 120 * world.rate(0)))},
    "link slower": lambda draw, world: {"link": ((draw.randrange(60, 400), 0.1),)},
    "link faster": lambda draw, world: {"link": ((draw.randrange(60, 400), 10.0),)},
    "start wrong": lambda draw, world: {"probe": draw.choice((1 / 7, 7.0))},
    "noise": lambda draw, world: {"noise": draw.uniform(0.05, 0.5)},
    "hiccups": lambda draw, world: {"hiccups": 1 / 200},
    "late rank": lambda draw, world: {"late": (draw.randrange(0, 300), 60, 0.03)},
    "young": lambda draw, world: {"young": (draw.randrange(50, 300), 0.2)},
    "wrong table": lambda draw, world: {"wrong": draw.uniform(0.05, 0.5)},
    "restarts": lambda draw, world: {"restarts": 150},
    "young noise": lambda draw, world: {"confirmed": 0.1, "first_confirmed": (0.5, draw.randrange(50, 300))},
}


@dataclass(frozen=True)
class Result:
    """What ``auto`` did in one world.

    Attributes:
        name: Of the world: its seed and its number.
        adversities: Of the world.
        trials: Share of the run that was lost by trials.
        progress: Share of the run's progress that was lost beyond the bound, by plans that windows had shown.
        regret: Time relative to the best static plan in hindsight, minus 1.
        retaken: Times that a plan was taken though it was measured outside the bound.
    """

    name: str
    adversities: tuple[str, ...]
    trials: float
    progress: float
    regret: float
    retaken: int


def drawn(seed: int, number: int, only: str | None = None) -> tuple[World, int, tuple[str, ...]]:
    """Return a world, its steps and the names of its adversities: one in even worlds, two in odd ones.

    Args:
        seed: Of all worlds.
        number: Of the world.
        only: An adversity that it has; None: any.
    """
    draw = Random(f"{seed}:{number}")
    compute = _between(draw, 0.02, 1.5)
    world = World(
        ranks=draw.randint(2, 8),
        megabits=_between(draw, 10.0, 1e4),
        compute=compute,
        elements=round(_between(draw, 1e5, 1.3e7)),
        kind=draw.choice(KINDS),
        hidden=draw.choice((0.0, 0.3)) * compute,
        waiting=0.02 * compute,
        coding=draw.choice((0.5, 1.0, 2.0)),
        off=0.01,
        reference=True,
        confirmed=draw.uniform(0.05, 0.2),
        shown_noise=0.05,
        seed=number,
    )
    names = [draw.choice(tuple(ADVERSITIES))] if only is None else [only]
    if number % 2:
        names.append(draw.choice([each for each in ADVERSITIES if each != "none" and each not in names]))
    for name in names:
        world = dataclasses.replace(world, **ADVERSITIES[name](draw, world))  # type: ignore[arg-type]
    return world, FEW_STEPS if number % 4 == 3 else STEPS, tuple(names)


def played(world: World, steps: int) -> Job:
    """Return a job under ``auto`` that made so many steps."""
    job = Job(world)
    while len(job.sent) < steps:
        job.step()
    return job


def measured(seed: int, only: str | None, number: int) -> Result:
    """Return what ``auto`` does in a world. Arguments as in ``drawn``."""
    world, steps, names = drawn(seed, number, only)
    job = played(world, steps)
    return Result(
        f"{seed}:{number}", names, lost_by_trials(job), lost_progress(job), regret(job), len(retaken(job))
    )


def lost_by_trials(job: Job) -> float:
    """Return the share of a run by which trials took longer than the plans that were held before."""
    lost = 0.0
    for (_, trial), steps in groupby(job.played, key=lambda step: (step.epoch, step.trial)):
        if trial:
            lost += max(0.0, sum(step.seconds - step.before for step in steps))
    return lost / job.seconds


def lost_progress(job: Job, bound: float = ACCEPTED) -> float:
    """Return the share of progress lost beyond the bound, from the third window after one that showed the plan so.

    Where what a plan keeps changes, its windows count from the change on.
    """
    windows: dict[Plan, set[int]] = {}
    lost = 0.0
    for step in job.played:
        if step.kept >= 1.0 - bound - 1e-9:
            windows.pop(step.plan, None)
            continue
        shown = windows.setdefault(step.plan, set())
        shown.add(step.window)
        if len(shown) > SETTLES:
            lost += 1.0 - bound - step.kept
    return lost / len(job.played)


def retaken(job: Job, bound: float = ACCEPTED) -> list[int]:
    """Return the decisions that took a plan, by their place, though it was last measured outside the bound.

    A measurement counts with the error that the policy says it has when it takes the plan.
    """
    found: list[int] = []
    known: dict[Plan, float] = {}
    for place, (before, decision) in enumerate(zip(job.decisions, job.decisions[1:], strict=False), 1):
        errors: dict[Plan, float] = {}
        for row in decision.candidates:
            plan = Plan(row.codec, row.cf)
            errors[plan] = getattr(row, "efficiency_error", None) or 0.0
            if row.efficiency is not None and row.window == decision.window:
                known[plan] = row.efficiency
        plan = Plan(decision.codec, decision.cf_candidate)
        taken = (plan, decision.phase) != (Plan(before.codec, before.cf_candidate), before.phase)
        kept = 1.0 if plan.cf == 1.0 else known.get(plan, 1.0) + errors.get(plan, 0.0)
        if taken and kept < 1.0 - bound - 1e-9:
            found.append(place)
    return found


def regret(job: Job, bound: float = ACCEPTED) -> float:
    """Return the time of a run relative to the best static plan in hindsight that keeps the bound, minus 1."""
    factors = [step.factor for step in job.played]
    _, best = job.world.best_replayed(job.progress, bound, factors)
    return job.seconds / best - 1.0


def table(results: Iterable[Result]) -> list[str]:
    """Return the rows of a table: for each adversity and all worlds, median, 90 % and worst of each figure."""
    every = list(results)
    rows = [
        "| adversity | worlds | lost by trials | progress lost | regret | retaken | worst, by figure |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for name in (*ADVERSITIES, "all"):
        found = [each for each in every if name == "all" or name in each.adversities]
        if not found:
            continue
        cells, worst = [], []
        for figure in ("trials", "progress", "regret"):
            ordered = sorted(found, key=lambda each: getattr(each, figure))
            values = [getattr(each, figure) for each in ordered]
            cells.append(f"{median(values):.1%}, {values[_ninety(values)]:.1%}, {values[-1]:.1%}")
            worst.append(_worst(ordered[-1]))
        most = max(found, key=lambda each: each.retaken)
        times = [each.retaken for each in found]
        cells.append(f"{sum(times)} in {sum(map(bool, times))}")
        worst.append(_worst(most) if most.retaken else "-")
        rows.append(f"| {name} | {len(found)} | {' | '.join(cells)} | {', '.join(worst)} |")
    return rows


def _worst(result: Result) -> str:
    return f"{result.name} ({'+'.join(result.adversities)})"


def _ninety(values: list[float]) -> int:
    return max(0, math.ceil(0.9 * len(values)) - 1)


def _between(draw: Random, least: float, most: float) -> float:
    """Return a number between two, evenly in its logarithm."""
    return math.exp(draw.uniform(math.log(least), math.log(most)))


def repeat(seed: int, number: int, only: str | None) -> None:
    """Print a world, its decisions and its figures."""
    world, steps, names = drawn(seed, number, only)
    print(names, world)
    job = played(world, steps)
    for place, decision in enumerate(job.decisions):
        began = next((at for at, step in enumerate(job.played) if step.window == place), len(job.played))
        print(f"step {began}: {decision.phase} {decision.rule}: {decision.reason}")
    best, _ = world.best_replayed(job.progress, ACCEPTED, [step.factor for step in job.played])
    print(f"retaken at decisions {retaken(job)}; best plan in hindsight {best}; {job.seconds:.1f} s")
    print(measured(seed, only, number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=1000, help="how many")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, default=0, help="of all worlds")
    parser.add_argument("--only", choices=ADVERSITIES, help="an adversity that all worlds have")
    parser.add_argument("--repeat", type=int, metavar="WORLD", help="number of one world to play in detail")
    given = parser.parse_args()
    if given.repeat is not None:
        repeat(given.seed, given.repeat, given.only)
        return
    work = partial(measured, given.seed, given.only)
    with ProcessPoolExecutor(given.workers) as pool:
        print("\n".join(table(pool.map(work, range(given.worlds), chunksize=10))))


if __name__ == "__main__":
    main()
