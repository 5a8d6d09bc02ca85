"""One run of EC-SGD on a problem, measured as it goes."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from ec_sgd_parts.logistic import Problem
from gravac.compressors import Compressor
from gravac.memories import build as build_memory
from gravac_lab.estimators import build as build_estimator
from gravac_lab.estimators.ecsgd import ECSGD, Worker


@dataclass(frozen=True, slots=True)
class Point:
    """A moment of a run. ``bits``, ``coordinates``: sent so far by all workers, positions counted in the bits."""

    step: int
    bits: int
    coordinates: int
    gap: float
    """(f(x) - f*) / (f(x0) - f*)."""


@dataclass(slots=True, kw_only=True)
class Run:
    """What a run was and how it went."""

    problem: str
    estimator: str
    compressor: str
    step_size: float
    points: list[Point] = field(default_factory=list)
    total_error: float = 0.0

    def steps_to(self, gap: float) -> int | None:
        """First measured step at or below this gap; None if never."""
        return next((point.step for point in self.points if point.gap <= gap), None)

    def gap_at(self, coordinates: int | None = None) -> float:
        """The gap when that many coordinates had been sent (None: at the end).

        Median over the last tenth of the steps up to there: one iterate flickers by what workers hold back.
        """
        before = [p for p in self.points if coordinates is None or p.coordinates <= coordinates]
        return statistics.median(p.gap for p in before if p.step >= 0.9 * before[-1].step)


def theory_step(problem: Problem, estimator: str) -> float:
    """γ = 1 / (2 (L + 2 𝓛 / n)), 𝓛 the expected smoothness of this sampling on the worst worker."""
    expected = max(
        build_estimator(estimator, w.smoothness()).smoothness(w.smoothness()) for w in problem.workers
    )
    return 1.0 / (2.0 * (problem.smoothness + 2.0 * expected / len(problem.workers)))


def run(
    problem: Problem,
    *,
    estimator: str,
    compressor: Callable[[], Compressor],
    label: str,
    shift: float,
    step_size: float,
    steps: int,
    every: int,
    cf: float = 1.0,
    until: float = 0.0,
    seed: int = 0,
) -> Run:
    """EC-SGD from x* + shift for ``steps`` steps, or until the gap is at most ``until``.

    Measured at every ``every``-th step and at the end. All of one seed draw the same samples.
    """
    loop = ECSGD(
        problem.best_x + shift,
        [
            Worker(
                problem=worker,
                estimator=build_estimator(estimator, worker.smoothness()),
                memory=build_memory("residual"),
                compressor=compressor(),
            )
            for worker in problem.workers
        ],
        step_size=step_size,
        cf=cf,
        seed=seed,
    )
    first = problem.loss(loop.x) - problem.best
    result = Run(problem=problem.name, estimator=estimator, compressor=label, step_size=step_size)
    result.points.append(Point(0, 0, 0, 1.0))
    while loop.steps < steps:
        loop.step()
        sent = loop.values
        if loop.steps == steps or loop.steps % every == 0:
            # Below zero only by rounding of f*.
            gap = max(problem.loss(loop.x) - problem.best, 0.0) / first
            result.points.append(Point(loop.steps, 8 * loop.payload_bytes, sent, gap))
            if gap <= until:
                break
    result.total_error = loop.total_error
    return result
