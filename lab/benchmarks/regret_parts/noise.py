"""How much dense trainings differ that differ in rounding errors alone: what no plan can be judged by."""

import math
from collections.abc import Iterator, Sequence
from statistics import median

from gravac_lab.tournament import Baseline, Run, baselines
from regret_parts.tables import NEAR


def against_others(base: Baseline, target: float) -> Iterator[tuple[float, float, float | None]]:
    """Yield what each dense run of a seed is, compared with the others as a plan is compared with dense.

    Args:
        base: Dense runs of one seed.
        target: Share of the steps after which the loss of the others is the target.

    Yields:
        Final loss above that of the others, relative; time to the target / that of the others, infinite: never; η.
    """
    for number, curve in enumerate(base.curves):
        others = Baseline(base.run, base.curves[:number] + base.curves[number + 1 :])
        level = others.target(target)
        found = curve.reaches(level)
        time = math.inf if found is None else found / others.steps_to(level)
        yield curve.final / others.final - 1.0, time, others.efficiency(curve)


def noise(runs: Sequence[Run], target: float) -> Iterator[str]:
    """Yield a table of what dense runs are when compared with each other, task by task."""
    yield "### How much two dense runs differ\n"
    yield (
        "Each dense run is compared with the others of its seed, as a plan is compared with dense. They differ from it "
        "by rounding errors of 2⁻⁹ only:\n"
    )
    yield "| task | runs | loss above the others, worst | at most 1 % | time to the target, worst | not reached | η |"
    yield "|---|---:|---:|---:|---:|---:|---|"
    groups: dict[str, list[tuple[float, float, float | None]]] = {}
    for base in baselines(runs).values():
        if len(base.curves) > 1:
            groups.setdefault(base.run.task, []).extend(against_others(base, target))
    every = [each for group in groups.values() for each in group]
    for task, found in (*sorted(groups.items()), ("all", every)):
        if not found:
            continue
        reached = [time for _, time, _ in found if not math.isinf(time)]
        etas = [eta for *_, eta in found if eta is not None]
        losses = [loss for loss, *_ in found]
        yield (
            f"| {task} | {len(found)} | {max(losses):+.1%} | {sum(loss <= NEAR for loss in losses)} of {len(found)} | "
            f"{max(reached) - 1.0:+.0%} | {len(found) - len(reached)} of {len(found)} | "
            f"{min(etas):.3f} to {max(etas):.3f}, median {median(etas):.3f} |"
        )
    medians = [median(losses) for losses in by_repetition(runs, target)]
    yield (
        f"\nThe medians over the seeds of each repetition are at most {NEAR:.0%} above the others in "
        f"{sum(loss <= NEAR for loss in medians)} of {len(medians)}."
    )


def by_repetition(runs: Sequence[Run], target: float) -> Iterator[list[float]]:
    """Yield the final losses of a repetition above those of the others, one for each seed."""
    groups: dict[tuple[str, int, int], list[float]] = {}
    for base in baselines(runs).values():
        if len(base.curves) > 1:
            for number, (loss, *_) in enumerate(against_others(base, target)):
                groups.setdefault((base.run.task, base.run.ranks, number), []).append(loss)
    yield from groups.values()
