"""How well statistical efficiency is predicted: fitted to the committed tournament, with each task left out in turn.

    python -m lab.benchmarks.efficiency_fit [--rows FILE …] [--ranks N …] [--each]

Prints the two constants of the formula as ``gravac.signals.efficiency`` has them, then rank correlation and errors of
predictions beside those of the gain, and how often the risk light would be right. Medians over seeds are compared.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from gravac.signals.efficiency import TABLE_STEPS, counts_late, noise_times, progress_loss, table_of
from gravac.signals.risk import ACCEPTED, INCREASE_HIGH
from gravac_lab.tournament import Baseline, Run, baselines, place, read_rows
from gravac_lab.tournament.rows import ALONE, DENSE

FOLDER = Path(__file__).parent / "tournament"
ROWS = [FOLDER / name for name in ("rows.jsonl.xz", "more.jsonl.xz", "repeats.jsonl.xz")]
LATE = [0.2 * step for step in range(41)]
LOST = [0.05 * step for step in range(31)]
"""Values tried for the two constants."""
LARGEST_ERROR = 0.1
"""An error counts as at most this in the fit, so that one odd task does not decide it."""
NEARLY_LOSSLESS = "dither:levels=7@10"
"""A plan that may be held while the noise of the gradient is measured."""


@dataclass(frozen=True, slots=True)
class Point:
    """A plan on a task: its efficiency, and what windows would have shown of it."""

    task: str
    plan: str
    ranks: int
    kind: str
    efficiency: float
    increase: float
    """Final held-out loss relative to dense, minus 1."""
    gain: float
    confirmed: float
    """ρ, the part of the mean gradient that the next step confirms."""
    late: float
    """Backlog times the confirmed part of the mean gradient; 0 where gradients may come late."""
    lost: float
    """ln(1 / progress ratio), as far as it counts."""
    slope: float
    """-d ln(loss) / d ln(step) of the second half."""
    steps: int

    @property
    def model(self) -> str:
        """The task without its optimizer."""
        return self.task.partition(":")[0]

    @property
    def codec(self) -> str:
        """The plan without settings and strength."""
        return self.plan.partition("@")[0].partition(":")[0]


def points(runs: Sequence[Run]) -> list[Point]:
    """Return the runs that compressed, with what is needed of each."""
    dense = baselines(runs)
    found = []
    for run in runs:
        base = dense.get(place(run))
        if run.plan in (DENSE, ALONE) or run.repeats_dense or base is None:
            continue
        if run.progress is None or run.backlog is None:
            continue
        confirmed = min(1.0, max(0.0, run.sums["raw_dot_next"] / run.sums["raw_sq"]))
        codec = run.plan.partition("@")[0]
        found.append(
            Point(
                task=run.task,
                plan=run.plan,
                ranks=run.ranks,
                kind=run.kind,
                efficiency=learned(run, base),
                increase=run.curve.final / base.final - 1.0,
                gain=min(1.0, run.gain or 0.0),
                confirmed=confirmed,
                late=0.0 if counts_late(codec, run.kind) else max(0.0, run.backlog) * confirmed,
                lost=progress_loss(run.progress, table_of(codec, run.kind)),
                slope=_slope(run),
                steps=run.steps,
            )
        )
    return found


def learned(run: Run, base: Baseline) -> float:
    """Return η of a run, at most 1. Where it reaches no level: the share of the steps after which dense is as good."""
    eta = base.efficiency(run.curve)
    return min(1.0, base.worth(run.curve) if eta is None else eta)


def medians(every: Sequence[Point]) -> list[Point]:
    """Return the medians over seeds of each plan, task and number of ranks."""
    groups: dict[tuple[str, str, int], list[Point]] = {}
    for point in every:
        groups.setdefault((point.task, point.plan, point.ranks), []).append(point)
    names = ("efficiency", "increase", "gain", "confirmed", "late", "lost", "slope")
    return [
        replace(group[0], **{name: median(getattr(each, name) for each in group) for name in names})
        for group in groups.values()
    ]


def _slope(run: Run) -> float:
    last = run.curve.at[-1]
    pairs = list(zip(run.curve.at, run.curve.losses, strict=True))
    middle = [loss for at, loss in pairs if 0.45 * last <= at <= 0.6 * last]
    late = [loss for at, loss in pairs if at >= 0.85 * last]
    if not middle or not late:
        return 0.0
    return max(0.0, -math.log(median(late) / median(middle)) / math.log(0.925 / 0.525))


def shown(point: Point, constants: tuple[float, float]) -> float:
    """Return η of a point by the formula alone."""
    return 1.0 / (1.0 + constants[0] * point.late + constants[1] * point.lost)


def fitted(known: Sequence[Point]) -> tuple[float, float]:
    """Return the constants with which the formula errs least."""
    return min(
        ((late, lost) for late in LATE for lost in LOST),
        key=lambda pair: sum(min(LARGEST_ERROR, abs(shown(each, pair) - each.efficiency)) for each in known),
    )


def predicted(point: Point, constants: tuple[float, float], known: Sequence[Point]) -> float:
    """Return η of a point: the formula, and a little of ``simulated``; of late gradients all of it."""
    formula, share = shown(point, constants), TABLE_STEPS / (TABLE_STEPS + point.steps)
    table = simulated(point, point.confirmed, known)
    if table is None:
        return formula
    return formula * table if counts_late(point.codec, point.kind) else formula + share * (table - formula)


def simulated(point: Point, confirmed: float | None, known: Sequence[Point]) -> float | None:
    """Return the median η of the same plan on the known tasks; None: it is not known there.

    Args:
        point: The plan, and the kind of the optimizer.
        confirmed: ρ of the task, by which losses under SGD are scaled; None: they are not.
        known: The known tasks.
    """
    alike = [each.efficiency for each in known if (each.plan, each.kind) == (point.plan, point.kind)]
    if not alike:
        return None
    times = noise_times(point.codec, confirmed) if point.kind == "sgd" else 1.0
    return max(0.01, 1.0 - times * (1.0 - median(alike)))


def left_out(
    every: Sequence[Point], name: Callable[[Point], str], known: Sequence[Point] | None = None
) -> list[float]:
    """Return η of each point, predicted from the points with another name."""
    cached: dict[str, tuple[tuple[float, float], list[Point]]] = {}
    found = []
    for point in every:
        if name(point) not in cached:
            others = [each for each in (every if known is None else known) if name(each) != name(point)]
            cached[name(point)] = fitted(others), others
        found.append(predicted(point, *cached[name(point)]))
    return found


def before_any_window(every: Sequence[Point], *, noise: bool) -> list[tuple[float, Point]]:
    """Return η under SGD as expected of plans that were never sent with, from the other tasks.

    Args:
        every: The points.
        noise: Whether ρ counts, as ``NEARLY_LOSSLESS`` showed it on the same task.
    """
    shown_by = {(each.task, each.ranks): each.confirmed for each in every if each.plan == NEARLY_LOSSLESS}
    found = []
    for point in every:
        confirmed = shown_by.get((point.task, point.ranks))
        others = [each for each in every if each.task != point.task]
        table = simulated(point, confirmed if noise else None, others)
        if point.kind == "sgd" and confirmed is not None and table is not None:
            found.append((table, point))
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
    return f"| {name} | {len(every)} | {correlation:.3f} | {100 * median(errors):.1f} | {100 * ninth:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, nargs="+", default=ROWS, help="rows of tournaments")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4], help="numbers of ranks")
    parser.add_argument("--each", action="store_true", help="also print each plan and task")
    given = parser.parse_args()
    runs = [point for point in points(read_rows(given.rows)) if point.ranks in given.ranks]
    every = medians(runs)
    constants = fitted(every)
    print("η = 1 / (1 + {:.1f} τρ + {:.2f} ln 1/P)\n".format(*constants))
    print(f"{len(runs)} runs of {len({each.task for each in every})} tasks\n")
    print("| predicted by | plans and tasks | rank correlation | median error, points | 90 %, points |")
    print("|---|---:|---:|---:|---:|")
    by_task = left_out(every, lambda point: point.task)
    print(_line("window and table, task left out", by_task, every))
    for kind, name in (("sgd", "SGD"), ("adam", "Adam")):
        pairs = [(found, point) for found, point in zip(by_task, every, strict=True) if point.kind == kind]
        print(_line(f"of these, {name}", [found for found, _ in pairs], [point for _, point in pairs]))
    by_model = left_out(every, lambda point: point.model)
    print(_line("model left out, with both optimizers", by_model, every))
    print(_line("codec left out, in all strengths", left_out(every, lambda point: point.codec), every))
    print(_line("nothing left out", [predicted(each, constants, every) for each in every], every))
    for noise, name in (
        (False, "table alone, task left out, SGD"),
        (True, "table and ρ, task left out, SGD"),
    ):
        pairs = before_any_window(every, noise=noise)
        print(_line(name, [found for found, _ in pairs], [point for _, point in pairs]))
    print(_line("gain", [each.gain for each in every], every))
    likely = list(zip(runs, left_out(runs, lambda point: point.task, every), strict=True))
    low = [each.increase <= 0.01 for each, found in likely if 1.0 - found <= ACCEPTED]
    high = [
        each.increase >= 0.03
        for each, found in likely
        if 1.0 - found > ACCEPTED and each.slope * (1.0 / found - 1.0) >= INCREASE_HIGH
    ]
    right = len(runs) - low.count(False) - high.count(False)
    print(f"\nrisk: low right in {sum(low)} of {len(low)}, high in {sum(high)} of {len(high)}")
    print(f"not wrong in {right} of {len(runs)}")
    if given.each:
        for point, found in sorted(zip(every, by_task, strict=True), key=lambda pair: pair[0].task):
            print(f"{point.task:28s} {point.plan:24s} η {point.efficiency:.3f}, predicted {found:.3f}")


if __name__ == "__main__":
    main()
