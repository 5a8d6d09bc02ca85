"""T_comp and useful throughput as objectives: which of them orders static plans as learning does.

    python -m lab.benchmarks.objectives [--plot docs/objectives.svg]

Static plans of the committed tournament with 4 ranks and seed 1, on three links. T_comp = T_sys · gain. Useful
throughput = T_sys · η, with η as simulations of all tasks showed it for the codec. They are compared with T_sys · η of
the very run, and with the time to the target, which a plan that loses much does not reach in as many steps as dense.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
from efficiency_fit import rank_correlation
from regret import TARGET
from regret_parts.links import LINKS, compute_seconds

from gravac.signals.efficiency import expected
from gravac_controller.report.figure import add_legend, new_figure, save
from gravac_lab.tournament import Run, efficiency, read_rows
from gravac_lab.tournament.curves import seconds_to, target_level
from gravac_lab.tournament.rows import DENSE
from gravac_lab.tournament.run_steps import step_seconds

ROWS = Path(__file__).parent / "tournament" / "rows.jsonl.xz"
RANKS = 4
SLOW = ("30mbit", "100mbit", "1gbit")
OBJECTIVES = ("t_comp", "useful")
WITHIN = 0.97
"""Expected η from which a plan is within the default bound, to rounding."""


@dataclass(frozen=True, slots=True)
class Point:
    """One static plan on one link, relative to dense of the same task, link and seed.

    Attributes:
        task: what was learned.
        link: its name.
        t_comp: T_sys · gain.
        useful: T_sys · η as expected.
        true: T_sys · η of this run.
        faster: time of dense / time of the plan to the target; 0: it does not reach it.
        within: whether it is expected to keep the default bound.
    """

    task: str
    link: str
    t_comp: float
    useful: float
    true: float
    faster: float
    within: bool


def points(runs: Sequence[Run], target: float) -> list[Point]:
    """Return the plans of the first seed with 4 ranks whose gain, η and step time are known."""
    found = []
    members = [run for run in runs if run.ranks == RANKS and run.seed == 1]
    dense = {run.task: run for run in members if run.plan == DENSE}
    for run in members:
        if run.sends is None or run.gain is None or run.collective:
            continue
        eta = expected(*run.sends, run.optimizer)
        if eta is None:
            continue
        base = dense[run.task]
        level, true = target_level(base.curve, target), efficiency(base.curve, run.curve) or 0.0
        for name in SLOW:
            network, compute = LINKS[name].network, compute_seconds(run.task, RANKS)
            try:
                steps = [step_seconds(one, network, compute) for one in (base, run)]
            except ValueError:  # the size of its payload is not known
                continue
            took = [seconds_to(level, one.curve, step) for one, step in zip((base, run), steps, strict=True)]
            speed = steps[0] / steps[1]
            faster = 0.0 if took[0] is None or took[1] is None else took[0] / took[1]
            within = eta.likely >= WITHIN
            figures = (speed * run.gain, speed * eta.likely, speed * true)
            found.append(Point(run.task, name, *figures, faster, within))
    return found


def table(found: Sequence[Point]) -> Iterator[str]:
    """Yield the table, one line for each link; medians over tasks."""
    yield (
        "| link | plans | T_comp: correlation with T_sys · η of the run | useful throughput | plans within the bound | "
        "T_comp: speed-up of its choice / best speed-up | lowest | useful throughput | lowest |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for link in SLOW:
        groups: dict[str, list[Point]] = {}
        for point in found:
            if point.link == link:
                groups.setdefault(point.task, []).append(point)
        every, kept = list(groups.values()), []
        for group in every:
            members = [point for point in group if point.within]
            if any(point.faster for point in members):
                kept.append(members)
        columns = [f"{sum(map(len, every))}"]
        columns += [f"{median(correlations(every, name)):.2f}" for name in OBJECTIVES]
        columns.append(f"{sum(map(len, kept))}, {len(kept)} tasks")
        for name in OBJECTIVES:
            shares = [choice(members, name) for members in kept]
            columns += [f"{median(shares):.2f}", f"{min(shares):.2f}"]
        yield f"| {link} | {' | '.join(columns)} |"


def correlations(groups: Sequence[Sequence[Point]], objective: str) -> list[float]:
    """Return the rank correlation of an objective with T_sys · η of the run, for each group."""
    return [
        rank_correlation([getattr(one, objective) for one in group], [one.true for one in group])
        for group in groups
    ]


def choice(group: Sequence[Point], objective: str) -> float:
    """Return the speed-up of the plan with the highest objective / the best speed-up; 0: it misses the target."""
    chosen = max(group, key=lambda one: float(getattr(one, objective)))
    return chosen.faster / max(one.faster for one in group)


def draw(found: Sequence[Point], path: Path) -> None:
    """Draw what each objective promises against the speed-up to the target, as SVG."""
    figure = new_figure(8.4, 4.0)
    handles = []
    tasks = list(dict.fromkeys(point.task for point in found))
    for axes, objective, title in zip(
        figure.subplots(1, 2, sharey=True), OBJECTIVES, ("T_comp", "useful throughput"), strict=True
    ):
        for number, task in enumerate(tasks):
            members = [point for point in found if point.task == task]
            drawn = axes.scatter(
                [getattr(point, objective) for point in members],
                [max(0.3, point.faster) for point in members],
                s=14,
                color=f"C{number}",
            )
            if objective == "t_comp":
                handles.append(drawn)
        highest = max(max(point.t_comp, point.useful, point.faster) for point in found)
        ends = (0.3, 1.2 * highest)
        axes.plot(ends, ends, color="0.7", linewidth=1, zorder=0)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=(0.27, ends[1]))
        axes.set_xlabel(f"{title}, relative to dense")
    figure.axes[0].set_ylabel("speed-up to the target\n(lowest: not reached)")
    add_legend(figure, handles, tasks, columns=4)
    save(figure, path, "svg")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", type=Path, help="also draw them, as SVG")
    given = parser.parse_args()
    found = points(read_rows([ROWS]), TARGET)
    if given.plot is not None:
        draw(found, given.plot)
    for line in table(found):
        print(line)


if __name__ == "__main__":
    main()
