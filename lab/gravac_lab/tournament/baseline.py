"""Baseline: dense training with one seed, done several times, which every run of that seed is compared with. Pure.

Two dense trainings that differ by rounding errors alone end at different losses, and reach a level at different steps.
A plan compared with one of them would be judged by its luck, so the median over all of them counts.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median, median_high

from gravac_lab.tournament.curves import LossCurve, efficiency, target_level
from gravac_lab.tournament.rows import DENSE, Run

Place = tuple[str, int, int, int]
"""Task, ranks, steps and seed."""


def place(run: Run) -> Place:
    """Return what a run has in common with its baseline."""
    return run.task, run.ranks, run.steps, run.seed


@dataclass(frozen=True, slots=True)
class Baseline:
    """Dense runs with the same seed.

    Attributes:
        run: the one without rounding errors.
        curves: of all of them, the one of ``run`` first.
    """

    run: Run
    curves: tuple[LossCurve, ...]

    @property
    def final(self) -> float:
        """Final held-out loss."""
        return median(curve.final for curve in self.curves)

    def target(self, share: float) -> float:
        """Return a loss that most of the runs have reached after a share of the steps."""
        return median_high(target_level(curve, share) for curve in self.curves)

    def steps_to(self, level: float) -> float:
        """Return the steps to a level; infinite where most of the runs do not reach it."""
        return median(
            math.inf if found is None else found for curve in self.curves for found in (curve.reaches(level),)
        )

    def efficiency(self, curve: LossCurve) -> float | None:
        """Return η of a plan; None where it reaches no level of most of the runs."""
        found = [each for dense in self.curves if (each := efficiency(dense, curve)) is not None]
        return median(found) if 2 * len(found) > len(self.curves) else None

    def worth(self, curve: LossCurve) -> float:
        """Return the share of its steps after which dense is as good as a plan ever was; 1 where it never is."""
        lowest = min(curve.losses)
        return median(
            1.0 if found is None else found / dense.at[-1]
            for dense in self.curves
            for found in (dense.reaches(lowest),)
        )


def baselines(runs: Iterable[Run]) -> dict[Place, Baseline]:
    """Return the baselines of runs, by what these have in common with them."""
    first: dict[Place, Run] = {}
    others: dict[Place, list[LossCurve]] = {}
    for run in runs:
        if run.plan == DENSE:
            first[place(run)] = run
        elif run.repeats_dense:
            others.setdefault(place(run), []).append(run.curve)
    return {where: Baseline(run, (run.curve, *others.get(where, ()))) for where, run in first.items()}
