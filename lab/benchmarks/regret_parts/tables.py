"""Markdown tables of cells: regret, rivals, learning and the choice."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from gravac_lab.tournament.regret import Cell, Contender
from gravac_lab.tournament.rows import DENSE
from regret_parts.jobs import JobRow
from regret_parts.links import LINKS

RIVALS: Mapping[str, tuple[str, ...]] = {
    "Top-k": ("topk", "topk+bf16"),
    "Random-k": ("randomk", "block-randomk"),
    "DGC": ("dgc",),
    "RedSync": ("redsync",),
    "PowerSGD": ("powersgd",),
    "QSGD": ("qsgd",),
    "16 bits": ("bf16", "fp16"),
    "SparseLoCo": ("sparseloco",),
    "Accordion": ("accordion",),
}
"""Codecs of each rival."""
NEAR = 0.01
"""Held-out loss above dense's that is wanted at most, relative."""
KEPT = 0.9
"""Retained value that is wanted at least."""


def regrets(cells: Sequence[Cell], policy: str, bound: float) -> Iterator[str]:
    """Yield the table of regret by link and ranks, the slowdown where dense is best, and the time against alone."""
    kept = "of all" if bound >= 1.0 else f"that keeps {1.0 - bound:.0%} of the efficiency"
    yield f"### `{policy}` against the best static plan {kept}\n"
    yield "| link | ranks | tasks | regret, median | worst | of it | not reached | dense best | slower than dense |"
    yield "|---|---:|---:|---:|---:|---|---:|---:|---:|"
    for (link, ranks), group in _grouped(cells, policy):
        yield f"| {link} | {ranks} | {_regret(group, policy, bound)} |"
    every = [cell for cell in cells if policy in cell.jobs]
    yield f"| all | | {_regret(every, policy, bound)} |"
    luck = [each for cell in every for each in cell.luck(bound)]
    if luck:
        missed = sum(math.isinf(each) for each in luck)
        tail = _quantile(luck, 0.9)
        slowest = "does not reach the target" if math.isinf(tail) else f"takes {_percent(tail)}"
        yield (
            f"\nChosen on other seeds, the best plan {slowest} in the slowest tenth of runs and misses the target in "
            f"{missed} of {len(luck)}: that much of hindsight is luck. {_hindsight(every, policy, bound)}"
        )
    lonely = [(cell.against_alone(policy), cell) for cell in every if cell.alone is not None]
    slower = [pair for pair in lonely if pair[0] is not None and pair[0] > 0.0]
    yield f"\nAlone is sooner at the target in {len(slower)} of {len(lonely)} cells."
    for longer, cell in slower:
        yield f"- {cell.task}, {cell.link}, {cell.ranks} ranks: `{policy}` takes {_percent(longer or 0.0)}"


def _hindsight(cells: Sequence[Cell], policy: str, bound: float) -> str:
    """Return how the best plan does when it is chosen on other seeds, by the measures of the policy."""
    chosen = [(median(luck), cell) for cell in cells if (luck := cell.luck(bound))]
    finite = [value for value, _ in chosen if math.isfinite(value)]
    against: dict[str, list[bool]] = {"chosen": [], policy: []}
    for value, cell in chosen:
        rival = cell.rival(RIVALS["Top-k"])
        if rival is None:
            continue
        for name, time in (
            ("chosen", (1.0 + value) * cell.best(bound).time),
            (policy, cell.jobs[policy].time),
        ):
            if math.isfinite(time) or math.isfinite(rival.time):
                against[name].append(rival.time >= 0.98 * time)
    shares = [f"{sum(found)} of {len(found)}" for found in against.values()]
    middle = median(value for value, _ in chosen)
    return (
        f"By medians over the seeds of a cell, as in the table, it takes {_percent(middle)} in the median and "
        f"{_percent(max(finite))} in the worst, and does not reach the target in {len(chosen) - len(finite)} of "
        f"{len(chosen)} cells. It takes at most 2 % longer than the best setting of Top-k in {shares[0]}, "
        f"`{policy}` in {shares[1]}."
    )


def _regret(group: Sequence[Cell], policy: str, bound: float) -> str:
    values = [(cell.regret(policy, bound), cell) for cell in group]
    finite = [pair for pair in values if math.isfinite(pair[0])]
    worst, of = "–", "–"
    if finite:
        value, cell = max(finite, key=lambda pair: pair[0])
        worst, of = _percent(value), f"{cell.task}: {_held(cell, policy)}, best {cell.best(bound).name}"
    jobs = [cell.jobs[policy] for cell in group]
    missed = sum(len(job.times) - job.reached for job in jobs)
    dense = [cell for cell in group if cell.best(bound).name == "dense"]
    longer = [found for cell in dense if (found := cell.against_dense(policy)) is not None]
    slower = f"{_percent(median(longer))}, worst {_percent(max(longer))}" if longer else "–"
    return (
        f"{len(group)} | {_percent(median(value for value, _ in values))} | {worst} | {of} | "
        f"{missed} of {sum(len(job.times) for job in jobs)} | {len(dense)} | {slower}"
    )


def rivals(cells: Sequence[Cell], title: str, policy: Callable[[Contender], str]) -> Iterator[str]:
    """Yield the table of speed-ups over each rival at its best setting, and over single settings of Top-k.

    Args:
        cells: To compare in.
        title: What is compared.
        policy: Returns the policy that is compared with a rival.
    """
    yield f"### {title} against rivals at their best setting\n"
    yield "| rival | cells | speed-up, median | least | at least as fast | at most 2 % slower | settings |"
    yield "|---|---:|---:|---:|---:|---:|---|"
    plans = sorted({name for cell in cells for name in cell.plans if name.startswith("topk")})
    rows = [(name, [cell.rival(families) for cell in cells]) for name, families in RIVALS.items()]
    rows += [(f"always {plan}", [cell.plans.get(plan) for cell in cells]) for plan in plans]
    for name, contenders in rows:
        pairs = [
            (speedup, rival.name)
            for cell, rival in zip(cells, contenders, strict=True)
            if rival is not None and policy(rival) in cell.jobs
            if (speedup := cell.speedup(policy(rival), rival)) is not None
        ]
        if pairs:
            yield _rival(name, pairs)


def always(policy: str) -> Callable[[Contender], str]:
    """Return what compares one policy with every rival."""
    return lambda _: policy


def _rival(name: str, pairs: Sequence[tuple[float, str]]) -> str:
    speedups = [speedup for speedup, _ in pairs]
    settings = Counter(setting for _, setting in pairs)
    shown = ", ".join(f"{setting} ({count})" for setting, count in settings.most_common())
    return (
        f"| {name} | {len(pairs)} | {times(median(speedups))} | {times(min(speedups))} | "
        f"{sum(speedup >= 1.0 for speedup in speedups)} | {sum(speedup >= 0.98 for speedup in speedups)} | {shown} |"
    )


def learning(cells: Sequence[Cell], policies: Sequence[str]) -> Iterator[str]:
    """Yield the table of held-out losses at equal steps against dense, and of retained value."""
    yield "### Learning at equal steps\n"
    yield (
        f"| policy | task | jobs | loss above dense, median | worst | at most {NEAR:.0%} | retained, median | worst | "
        f"at least {KEPT:.0%} | as good as dense after, worst |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for policy in policies:
        tasks = list(dict.fromkeys(cell.task for cell in cells if policy in cell.jobs))
        for task in (*tasks, "all"):
            found = [
                each for cell in cells if task in ("all", cell.task) for each in cell.learned.get(policy, ())
            ]
            losses = [each.above_dense for each in found]
            kept = [each.retained for each in found if each.retained is not None]
            retained = (
                f"{median(kept):.0%} | {min(kept):.0%} | {sum(value >= KEPT for value in kept)} of {len(kept)}"
                if kept
                else "– | – | –"
            )
            worth = min(each.worth for each in found)
            yield (
                f"| `{policy}` | {task} | {len(found)} | {_percent(median(losses))} | {_percent(max(losses))} | "
                f"{sum(loss <= NEAR for loss in losses)} | {retained} | {worth:.0%} of steps |"
            )
    for policy in policies:
        yield f"\n`{policy}`, {_medians([cell for cell in cells if policy in cell.jobs], policy)}"


def _medians(cells: Sequence[Cell], policy: str) -> str:
    """Return in how many cells the median over seeds is as wanted."""
    losses = [(median(each.above_dense for each in cell.learned[policy]), cell) for cell in cells]
    kept = [
        median(values)
        for cell in cells
        if (values := [each.retained for each in cell.learned[policy] if each.retained is not None])
    ]
    above = list(dict.fromkeys(cell.task for loss, cell in losses if loss > NEAR))
    others = f" The others are of {', '.join(above)}." if above else ""
    return (
        f"medians over the seeds of a task, link and number of ranks: at most {NEAR:.0%} above dense in "
        f"{len(losses) - sum(loss > NEAR for loss, _ in losses)} of {len(losses)}, at least {KEPT:.0%} retained in "
        f"{sum(value >= KEPT for value in kept)} of {len(kept)}.{others}"
    )


def choices(cells: Sequence[Cell], policy: str, bound: float) -> Iterator[str]:
    """Yield the table of what the policy held and what would have been best, with the speed-up over dense of each."""
    yield f"### When to compress: what `{policy}` holds at the end\n"
    yield "| task | link | ranks | held | faster than dense | best in hindsight | faster than dense | advice |"
    yield "|---|---|---:|---|---:|---|---:|---|"
    for cell in cells:
        if policy not in cell.jobs:
            continue
        best, ours = cell.best(bound), cell.jobs[policy]
        yield (
            f"| {cell.task} | {cell.link} | {cell.ranks} | {_held(cell, policy)} | {_faster(ours.time)} | "
            f"{best.name} | {_faster(best.time)} | {_advice(cell, policy, best)} |"
        )


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of the values does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def _grouped(cells: Sequence[Cell], policy: str) -> Iterator[tuple[tuple[str, int], list[Cell]]]:
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        if policy in cell.jobs:
            groups.setdefault((cell.link, cell.ranks), []).append(cell)
    yield from groups.items()


def _held(cell: Cell, policy: str) -> str:
    return " or ".join(dict.fromkeys(cell.held[policy]))


def _advice(cell: Cell, policy: str, best: Contender) -> str:
    """Return whether the best plan or the policy is faster than dense. A job that was dense says nothing of it."""
    held = [cell.jobs[policy].time] if set(cell.held[policy]) != {DENSE} else []
    return "compress" if min([best.time, *held]) < 1.0 - NEAR else "do not"


def _faster(time: float) -> str:
    return "not reached" if math.isinf(time) else f"{1.0 / time:.2f}x"


def times(value: float) -> str:
    """Format a speed-up."""
    return "only it reaches" if math.isinf(value) else f"{value:.2f}x" if value > 0.0 else "not reached"


def _percent(value: float) -> str:
    return "not reached" if math.isinf(value) else f"{value:+.1%}"


def distribution(rows: Sequence[JobRow], policy: str) -> Iterator[str]:
    """Yield the table of the share of all steps under each plan, by link and kind of optimizer."""
    yield f"### What `{policy}` sends with, as a share of all steps\n"
    yield "| link | optimizer | jobs | plans |"
    yield "|---|---|---:|---|"
    groups: dict[tuple[str, str], list[JobRow]] = {}
    for row in rows:
        if row.cell.policy == policy:
            groups.setdefault((row.cell.link, "SGD" if row.optimizer == "sgd" else "Adam"), []).append(row)
    for (link, kind), members in sorted(
        groups.items(), key=lambda item: (list(LINKS).index(item[0][0]), item[0][1])
    ):
        steps: dict[str, float] = {}
        for row in members:
            for plan, share in row.shares().items():
                steps[plan] = steps.get(plan, 0.0) + share / len(members)
        most = sorted(steps.items(), key=lambda item: -item[1])
        shown = ", ".join(f"`{plan}` {share:.0%}" for plan, share in most if share >= 0.005)
        yield f"| {link} | {kind} | {len(members)} | {shown} |"
