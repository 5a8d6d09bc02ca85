"""What choices reach that know more of a plan's efficiency than a policy can, and never spend a step on a trial."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gravac.policies.auto.plans import defaults, size_of
from gravac.signals.efficiency import (
    CERTAIN,
    LEAST_KEPT,
    TABLE_STEPS,
    Efficiency,
    counts_late,
    of_job,
    of_progress,
    table_of,
)
from gravac_lab.tournament import Run, baselines, place
from gravac_lab.tournament.regret import EVERY, Cell
from gravac_lab.tournament.rows import DENSE
from gravac_lab.tournament.run_steps import chosen_collective, step_seconds
from regret_parts.links import LINKS, compute_seconds
from regret_parts.tables import NEAR, RIVALS

INTRODUCTION = (
    "For each seed the static plan with the highest useful throughput is held from the first step to the last, without "
    "trials and without dense steps at the start. Candidates are the plans of `auto` that ran. Each row chooses by "
    "other knowledge. A policy has the knowledge of the first row before it begins, that of the second after a window, "
    "and that of the others never. What even the last row misses, no choice by efficiency can reach, because the noise "
    "of single runs decides it."
)
RISKY = "though it may be low"
NEARLY_LOSSLESS = "dither:levels=7@10"
"""The plan whose runs show the noise of the gradient."""
MEMORIES = ("", "residual")
CODECS = frozenset(plan.codec for plan in defaults())


@dataclass(frozen=True, slots=True)
class Option:
    """One run of a static plan that ``auto`` may choose.

    Attributes:
        run: Of the tournament.
        seconds: Of a step.
        time: To the target, relative to dense; infinite: not reached.
        efficiency: η of the run; None: it reaches no level.
        above_dense: Final held-out loss / that of dense - 1.
        confirmed: ρ of the training, the part of the mean gradient that is not noise; None: not measured.
    """

    run: Run
    seconds: float
    time: float
    efficiency: float | None
    above_dense: float
    confirmed: float | None


Estimate = Callable[[Option], Efficiency | None]
"""Returns η of a plan; None: not known."""


def by_table(option: Option) -> Efficiency | None:
    """Return what the simulations showed for the codec, the kind of optimizer and the number of ranks."""
    return of_job(*_strength(option.run), option.run.kind, option.run.ranks, None)


def by_noise(option: Option) -> Efficiency | None:
    """Return the same, scaled by the noise of the gradients."""
    return of_job(*_strength(option.run), option.run.kind, option.run.ranks, option.confirmed)


def by_windows(option: Option) -> Efficiency | None:
    """Return what windows next to the dense reference show if they last for the whole training."""
    run, table = option.run, by_noise(option)
    if run.progress is None or run.backlog is None:
        return table
    codec, _ = _strength(run)
    late = counts_late(codec, run.kind)
    found = of_progress(
        0.0 if late else run.backlog, run.progress, _confirmed(run), table_of(codec, run.kind)
    )
    if table is not None and late:
        found *= table.likely
    elif table is not None:
        found += TABLE_STEPS / (TABLE_STEPS + run.steps) * (table.likely - found)
    return Efficiency(found, found, found)


def by_itself(option: Option) -> Efficiency | None:
    """Return η of the run, which is known when it has ended."""
    found = option.efficiency
    return None if found is None else Efficiency(found, found, found)


ESTIMATES: Mapping[str, Estimate] = {
    "the table of simulations": by_table,
    "the table and the noise of the gradient": by_noise,
    "windows of the whole training, known at its end": by_windows,
    "its own η, known at its end": by_itself,
}


def limits(cells: Sequence[Cell], runs: Sequence[Run], policy: str, bound: float) -> Iterator[str]:
    """Yield a table of what choices by efficiency reach, next to a policy.

    Args:
        cells: To choose in.
        runs: Static plans and dense, of the same tasks.
        policy: That the choices are compared with.
        bound: Loss of efficiency that is accepted; 1: any.
    """
    kept = "all plans" if bound >= EVERY else f"plans that keep {1.0 - bound:.0%} of the efficiency"
    yield f"### What any choice by efficiency reaches, of {kept}\n"
    yield (
        f"{INTRODUCTION} A plan whose credible range of efficiency reaches below {LEAST_KEPT:.0%} is not chosen"
        + (f", but in the rows that end with *{RISKY}*.\n" if bound >= EVERY else ".\n")
    )
    yield (
        "| a plan is chosen by | regret, median | worst | not reached | at most 2 % slower than Top-k's best setting | "
        f"at most {NEAR:.0%} above dense |"
    )
    yield "|---|---:|---:|---:|---:|---:|"
    every = list(options(cells, runs))
    for guard in (LEAST_KEPT, 0.0) if bound >= EVERY else (LEAST_KEPT,):
        for title, estimate in ESTIMATES.items():
            results = []
            for seeds in every:
                picked = [chosen(known, estimate, bound, guard) for known in seeds.values()]
                times, losses = zip(*((each.time, each.above_dense) for each in picked), strict=True)
                results.append((median(times), median(losses)))
            credible = "" if guard else f", {RISKY}"
            yield f"| {title}{credible} | {_line(cells, results, bound)} |"
    results = [
        (cell.jobs[policy].time, median(each.above_dense for each in cell.learned[policy])) for cell in cells
    ]
    yield f"| `{policy}`, with its trials | {_line(cells, results, bound)} |"


def chosen(known: Sequence[Option], estimate: Estimate, bound: float, guard: float) -> Option:
    """Return the option of the highest useful throughput that keeps the bound; dense, where there is none.

    Args:
        known: Options of one seed, dense among them.
        estimate: Of η.
        bound: Loss of efficiency that is accepted; 1: any.
        guard: Least credible efficiency of a plan.
    """
    best: tuple[float, Option] | None = None
    for option in known:
        eta = CERTAIN if option.run.plan == DENSE else estimate(option)
        if eta is None or eta.likely < 1.0 - bound or eta.low < guard:
            continue
        throughput = eta.likely / option.seconds
        if best is None or throughput > best[0]:
            best = throughput, option
    assert best is not None, "dense keeps every bound"
    return best[1]


def options(cells: Sequence[Cell], runs: Sequence[Run]) -> Iterator[dict[int, list[Option]]]:
    """Yield what ``auto`` may choose in each cell, for each seed that its jobs have."""
    places: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        if _in_space(run):
            places.setdefault((run.task, run.ranks), []).append(run)
    dense = baselines(runs)
    noise = {place(run): _confirmed(run) for run in runs if run.plan == NEARLY_LOSSLESS and run.sums}
    for cell in cells:
        network, compute = LINKS[cell.link].network, compute_seconds(cell.task, cell.ranks)
        seeds = {seed for job in cell.jobs.values() for seed in job.seeds}
        found: dict[int, list[Option]] = {seed: [] for seed in sorted(seeds)}
        for run in places[cell.task, cell.ranks]:
            plan = cell.plans.get(run.plan)
            if plan is None or run.seed not in seeds or run.seed not in plan.seeds:
                continue
            if run.collective and run.collective != chosen_collective(run, network):
                continue
            number, where = plan.seeds.index(run.seed), place(run)
            found[run.seed].append(
                Option(
                    run=run,
                    seconds=step_seconds(run, network, compute, ring_ticks=True),
                    time=plan.times[number],
                    efficiency=plan.efficiencies[number],
                    above_dense=run.curve.final / dense[where].final - 1.0,
                    confirmed=noise.get(where),
                )
            )
        yield found


def _in_space(run: Run) -> bool:
    if run.plan == DENSE:
        return True
    if run.sends is None or run.repeats_dense:
        return False
    memory = run.plan.partition("/")[2].partition("/")[0]
    return run.sends[0] in CODECS and memory in MEMORIES


def _confirmed(run: Run) -> float:
    return min(1.0, max(0.0, run.sums["raw_dot_next"] / run.sums["raw_sq"]))


def _strength(run: Run) -> tuple[str, float]:
    assert run.sends is not None, f"{run.plan} has one strength"
    codec, cf = run.sends
    return codec, size_of(codec) or cf


def _line(cells: Sequence[Cell], results: Sequence[tuple[float, float]], bound: float) -> str:
    """Return the columns of a row, from the time to the target and the loss above dense of each cell."""
    regrets = [time / cell.best(bound).time - 1.0 for cell, (time, _) in zip(cells, results, strict=True)]
    finite = [regret for regret in regrets if math.isfinite(regret)]
    against = [
        rival.time >= 0.98 * time
        for cell, (time, _) in zip(cells, results, strict=True)
        if (rival := cell.rival(RIVALS["Top-k"])) is not None
        if math.isfinite(time) or math.isfinite(rival.time)
    ]
    near = sum(above <= NEAR for _, above in results)
    return (
        f"{median(regrets):+.1%} | {max(finite):+.0%} | {len(regrets) - len(finite)} of {len(regrets)} | "
        f"{sum(against)} of {len(against)} | {near} of {len(results)}"
    )
