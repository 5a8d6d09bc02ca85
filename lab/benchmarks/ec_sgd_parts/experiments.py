"""The three experiments, each a function from a problem to runs and the figures that sum them up.

The first uses the safe step size of the theory, 1 / (2 (L + 2 𝓛 / n)); the others, where both sides use the same, twice
that. Gaps are (f(x) - f*) / (f(x0) - f*). Within an experiment and seed all runs draw from the same generators.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ec_sgd_parts.runs import Run, run, theory_step
from ec_sgd_parts.standins import Kind
from gravac.compressors import TopK
from gravac.compressors.sparse.hardthreshold import HardThreshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the experiments do with one kind of data."""

    gap: float
    """Experiment 1 counts steps to this gap."""
    most_steps: int
    """Experiment 1 gives up after that many."""
    coarse: float
    """λ of experiment 1."""
    fine: float
    """λ of experiment 2, small enough that the floor it leaves is out of sight."""
    top: int
    """k of experiment 3."""
    threshold: float
    """λ of experiment 3."""
    variance_steps: int
    """Steps of experiment 2."""
    sparsifier_steps: int
    """Steps of experiment 3."""
    every: int
    """Steps between measurements in experiments 2 and 3."""


@dataclass(slots=True, kw_only=True)
class Result:
    """One experiment on one problem: its figures by name, and its curves."""

    experiment: str
    problem: str
    seed: int
    figures: dict[str, float | int | None]
    runs: list[Run] = field(default_factory=list)


def sampling(kind: Kind, settings: Settings, seed: int) -> Result:
    """Experiment 1: importance against uniform sampling, hard threshold, each at the step size its theory admits."""
    problem = kind.problem(seed)
    runs = [
        run(
            problem,
            estimator=estimator,
            compressor=lambda: HardThreshold(threshold=settings.coarse),
            label=f"HT {settings.coarse:g}",
            shift=kind.shift,
            step_size=theory_step(problem, estimator),
            steps=settings.most_steps,
            every=1 if settings.most_steps <= 2000 else 10,
            until=settings.gap,
            seed=seed,
        )
        for estimator in ("uniform", "importance")
    ]
    uniform, importance = (one.steps_to(settings.gap) for one in runs)
    figures = {
        **problem.constants(),
        "gap": settings.gap,
        "step_size_uniform": runs[0].step_size,
        "step_size_importance": runs[1].step_size,
        "steps_uniform": uniform,
        "steps_importance": importance,
        "steps_ratio": uniform / importance if uniform and importance else None,
    }
    return Result(experiment="sampling", problem=problem.name, seed=seed, figures=figures, runs=runs)


def variance(kind: Kind, settings: Settings, seed: int) -> Result:
    """Experiment 2: L-SVRG against SGD (both uniform), hard threshold, same step size."""
    problem = kind.problem(seed)
    step_size = 2 * theory_step(problem, "uniform")
    runs = [
        run(
            problem,
            estimator=estimator,
            compressor=lambda: HardThreshold(threshold=settings.fine),
            label=f"HT {settings.fine:g}",
            shift=kind.shift,
            step_size=step_size,
            steps=settings.variance_steps,
            every=settings.every,
            seed=seed,
        )
        for estimator in ("uniform", "lsvrg")
    ]
    sgd, lsvrg = (one.gap_at() for one in runs)
    figures: dict[str, float | int | None] = {
        "step_size": step_size,
        "steps": settings.variance_steps,
        "gap_sgd": sgd,
        "gap_lsvrg": lsvrg,
        "times_closer": sgd / lsvrg if lsvrg else None,
    }
    return Result(experiment="variance", problem=problem.name, seed=seed, figures=figures, runs=runs)


def sparsifier(kind: Kind, settings: Settings, seed: int) -> Result:
    """Experiment 3: hard threshold against Top-k under L-SVRG, data dealt out at random and sorted by label."""
    runs = []
    for by_label in (False, True):
        problem = kind.problem(seed, by_label)
        for label, compressor, cf in (
            (f"Top-{settings.top}", TopK, problem.size / settings.top),
            (f"HT {settings.threshold:g}", lambda: HardThreshold(threshold=settings.threshold), 1.0),
        ):
            runs.append(
                run(
                    problem,
                    estimator="lsvrg",
                    compressor=compressor,
                    label=label,
                    shift=kind.shift,
                    step_size=2 * theory_step(problem, "uniform"),
                    steps=settings.sparsifier_steps,
                    every=settings.every,
                    cf=cf,
                    seed=seed,
                )
            )
    top, threshold, top_sorted, threshold_sorted = runs
    budget = min(top_sorted.points[-1].coordinates, threshold_sorted.points[-1].coordinates)
    shared = min(top.points[-1].coordinates, threshold.points[-1].coordinates)
    figures: dict[str, float | int | None] = {
        "steps": settings.sparsifier_steps,
        "top_growth": top_sorted.gap_at() / top.gap_at(),
        "threshold_growth": threshold_sorted.gap_at() / threshold.gap_at(),
        "coordinates": shared,
        "gap_top": top.gap_at(shared),
        "gap_threshold": threshold.gap_at(shared),
        "coordinates_sorted": budget,
        "gap_top_sorted": top_sorted.gap_at(budget),
        "gap_threshold_sorted": threshold_sorted.gap_at(budget),
        "total_error_top_sorted": top_sorted.total_error,
        "total_error_threshold_sorted": threshold_sorted.total_error,
    }
    return Result(experiment="sparsifier", problem=kind.name, seed=seed, figures=figures, runs=runs)


EXPERIMENTS: dict[str, Callable[[Kind, Settings, int], Result]] = {
    "sampling": sampling,
    "variance": variance,
    "sparsifier": sparsifier,
}
