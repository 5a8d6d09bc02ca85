"""How well statistical efficiency is predicted: fitted to the committed tournament, with each task left out in turn.

    python -m benchmarks.efficiency_fit [--rows FILE …] [--each]

Prints the two constants of each kind of optimizer as ``gravac.signals.efficiency`` has them, then rank correlation and
errors of predictions beside those of the gain, and how often the risk light would be right.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gravac.tournament import Run, efficiency, read_rows
from gravac.tournament.rows import ALONE, DENSE

ROWS = Path(__file__).parent / "tournament" / "rows.jsonl"
LATE = [0.1 * step for step in range(81)]
LOST = [0.02 * step for step in range(76)]
"""Values tried for the two constants."""
LARGEST_ERROR = 0.1
"""An error counts as at most this in the fit, so that one odd task does not decide it."""


@dataclass(frozen=True, slots=True)
class Point:
    """One run: its efficiency, and what a window would have shown of it."""

    task: str
    plan: str
    kind: str
    efficiency: float
    increase: float
    """Final held-out loss relative to dense, minus 1."""
    gain: float
    late: float
    """Backlog times the confirmed part of the mean gradient."""
    lost: float
    """ln(1 / progress ratio)."""
    slope: float
    """-d ln(loss) / d ln(step) of the second half."""


def points(runs: Sequence[Run]) -> list[Point]:
    """Return the runs that compressed, with what is needed of each."""
    dense = {(run.task, run.ranks, run.seed, run.steps): run for run in runs if run.plan == DENSE}
    found = []
    for run in runs:
        base = dense.get((run.task, run.ranks, run.seed, run.steps))
        if run.plan in (DENSE, ALONE) or base is None or run.progress is None or run.backlog is None:
            continue
        eta = efficiency(base.curve, run.curve)
        if eta is None:
            reached = base.curve.reaches(min(run.curve.losses))
            eta = 0.02 if reached is None else reached / run.curve.at[-1]
        confirmed = run.sums["raw_dot_next"] / run.sums["raw_sq"]
        found.append(
            Point(
                task=run.task,
                plan=run.plan,
                kind="sgd" if run.optimizer == "sgd" else "adam",
                efficiency=min(1.0, eta),
                increase=run.curve.final / base.curve.final - 1.0,
                gain=min(1.0, run.gain or 0.0),
                late=max(0.0, run.backlog) * min(1.0, max(0.0, confirmed)),
                lost=-math.log(min(1.0, max(0.01, run.progress))),
                slope=_slope(run),
            )
        )
    return found


def _slope(run: Run) -> float:
    last = run.curve.at[-1]
    pairs = list(zip(run.curve.at, run.curve.losses, strict=True))
    middle = [loss for at, loss in pairs if 0.45 * last <= at <= 0.6 * last]
    late = [loss for at, loss in pairs if at >= 0.85 * last]
    if not middle or not late:
        return 0.0
    return max(0.0, -math.log(median(late) / median(middle)) / math.log(0.925 / 0.525))


def fitted(known: Sequence[Point]) -> dict[str, tuple[float, float]]:
    """Return the two constants of each kind of optimizer among the points."""
    found = {}
    for kind in sorted({each.kind for each in known}):
        same = [each for each in known if each.kind == kind]
        found[kind] = min(
            ((late, lost) for late in LATE for lost in LOST),
            key=lambda pair: sum(
                min(
                    LARGEST_ERROR,
                    abs(1.0 / (1.0 + pair[0] * each.late + pair[1] * each.lost) - each.efficiency),
                )
                for each in same
            ),
        )
    return found


def predicted(point: Point, constants: dict[str, tuple[float, float]], known: Sequence[Point]) -> float:
    """Return η of a point: the formula, averaged with the median of the same plan on the known tasks."""
    late, lost = constants.get(point.kind, next(iter(constants.values())))
    formula = 1.0 / (1.0 + late * point.late + lost * point.lost)
    alike = [each.efficiency for each in known if (each.plan, each.kind) == (point.plan, point.kind)]
    return (formula + median(alike)) / 2.0 if alike else formula


def left_out(every: Sequence[Point], name: Callable[[Point], str]) -> list[float]:
    """Return η of each point, predicted from the points with another name."""
    cached: dict[str, tuple[dict[str, tuple[float, float]], list[Point]]] = {}
    found = []
    for point in every:
        if name(point) not in cached:
            known = [each for each in every if name(each) != name(point)]
            cached[name(point)] = fitted(known), known
        found.append(predicted(point, *cached[name(point)]))
    return found


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank."""
    a, b = _ranks(one), _ranks(other)
    mean = (len(a) + 1) / 2
    dot = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]


def _line(name: str, found: Sequence[float], every: Sequence[Point]) -> str:
    true = [each.efficiency for each in every]
    errors = sorted(abs(one - other) for one, other in zip(found, true, strict=True))
    ninth = errors[math.ceil(0.9 * len(errors)) - 1]
    correlation = rank_correlation(found, true)
    return f"| {name} | {correlation:.2f} | {100 * median(errors):.1f} | {100 * ninth:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, nargs="+", default=[ROWS], help="rows of tournaments")
    parser.add_argument("--each", action="store_true", help="also print each run")
    given = parser.parse_args()
    every = points(read_rows(given.rows))
    constants = fitted(every)
    for kind, (late, lost) in constants.items():
        print(f"{kind}: 1 / (1 + {late:.1f} τρ + {lost:.2f} ln 1/P)")
    print(f"\n{len(every)} runs\n")
    print("| predicted by | rank correlation | median error, points | 90 %, points |")
    print("|---|---:|---:|---:|")
    by_task = left_out(every, lambda point: point.task)
    print(_line("progress, backlog and table, task left out", by_task, every))
    print(_line("the same, plan left out", left_out(every, lambda point: point.plan), every))
    print(_line("the same, nothing left out", [predicted(each, constants, every) for each in every], every))
    print(_line("gain", [each.gain for each in every], every))
    rises = [each.slope * (1.0 / found - 1.0) for each, found in zip(every, by_task, strict=True)]
    low = [each.increase <= 0.01 for each, rise in zip(every, rises, strict=True) if rise <= 0.005]
    high = [each.increase >= 0.03 for each, rise in zip(every, rises, strict=True) if rise >= 0.05]
    right = len(every) - low.count(False) - high.count(False)
    print(f"\nrisk: low right in {sum(low)} of {len(low)}, high in {sum(high)} of {len(high)}")
    print(f"not wrong in {right} of {len(every)}")
    if given.each:
        for point, found in sorted(zip(every, by_task, strict=True), key=lambda pair: pair[0].task):
            print(f"{point.task:28s} {point.plan:24s} η {point.efficiency:.3f}, predicted {found:.3f}")


if __name__ == "__main__":
    main()
