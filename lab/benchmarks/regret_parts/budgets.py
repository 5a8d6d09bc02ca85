"""The plans that learn most for the bytes that they send: codec, error memory and learning rate, by wire budget."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from statistics import median

from gravac_lab.tournament import Baseline, Run, baselines, place, retained_value
from gravac_lab.tournament.rows import ALONE, DENSE

TASKS = {"lm": "LSTM, SGD", "gpt:size=0.3m": "GPT, AdamW"}
RANKS = 4
SEEDS = (1, 2, 3)
BUDGETS = (7.0, 15.0, 40.0, 100.0, inf)
"""A plan belongs to the largest budget that it keeps, by its wire CF."""
NEARLY = 0.9
"""Share of a budget that counts as keeping it: codecs do not take any CF."""
SHOWN = 6
HEAD = f"""
## Best plans by wire budget

These are the {SHOWN} plans of each budget that end lowest: {RANKS} ranks, 300 steps, medians over {len(SEEDS)} seeds.
Unless a plan names others, the error memory is `residual`, and the learning rate is the one at which dense training
learns best.

- Up to 17x, rounding to few levels learns most. Beyond 17x, Top-k with 2-bit values does, though at 40x under SGD it is
  no better than with 16-bit values. Under AdamW it ends at 40x where Top-k with 16-bit values ends at 15x, and at 90x
  where the latter ends at 40x.
- Under AdamW, rounding at random to 3 levels learns more without an error memory than with one. Under SGD it learns
  less.
- A part of the residual at a time (`partial`), ConEF's 4-bit memory, and half or twice the learning rate gain nothing.
  Momentum in the memory, as in DGC, loses, with and without clipping of each rank's gradients.
"""


def budgets(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the section.

    Args:
        runs: Static plans, dense, its repetitions and alone. A task with ``rate=`` is the task at another rate.
    """
    yield HEAD
    dense = baselines(runs)
    alone = {place(run): run.curve.final for run in runs if run.plan == ALONE}
    yield "| task | budget | plan | wire CF | loss above dense, median | worst | η, median | retained |"
    yield "|---|---:|---|---:|---:|---:|---:|---:|"
    for task, title in TASKS.items():
        groups: dict[str, list[Run]] = {}
        for run in runs:
            name, rate = _without_rate(run.task)
            if (name, run.ranks) != (task, RANKS) or run.seed not in SEEDS or run.wire_cf is None:
                continue
            if run.plan != DENSE and not run.repeats_dense and not run.collective:
                groups.setdefault(f"`{run.plan}`{rate}", []).append(run)
        complete = {name: members for name, members in groups.items() if len(members) == len(SEEDS)}
        for least, most in pairwise(BUDGETS):
            rows = [
                _row(name, members, task, dense, alone)
                for name, members in complete.items()
                if NEARLY * least <= median(run.wire_cf or 0.0 for run in members) < NEARLY * most
            ]
            yield from (f"| {title} | {least:g}x | {line}" for _, line in sorted(rows)[:SHOWN])


def _row(
    name: str,
    members: Sequence[Run],
    task: str,
    dense: dict[tuple[str, int, int, int], Baseline],
    alone: dict[tuple[str, int, int, int], float],
) -> tuple[float, str]:
    """Return the median loss above dense, and the columns from the plan on."""
    places = [(task, run.ranks, run.steps, run.seed) for run in members]
    above, kept, etas = [], [], []
    for run, where in zip(members, places, strict=True):
        base = dense[where]
        above.append(run.curve.final / base.final - 1.0)
        kept.append(retained_value(alone[where], base.final, run.curve.final) or 0.0)
        etas.append(base.efficiency(run.curve) or 0.0)
    wire = median(run.wire_cf or 0.0 for run in members)
    return median(above), (
        f"{name} | {wire:.1f} | {median(above):+.1%} | {max(above):+.1%} | {median(etas):.3f} | {median(kept):.0%} |"
    )


def _without_rate(task: str) -> tuple[str, str]:
    """Return the task at its own learning rate, and the other rate in words."""
    name, _, text = task.partition(":")
    settings = text.split(",") if text else []
    rates = [setting.removeprefix("rate=") for setting in settings if setting.startswith("rate=")]
    own = ",".join(setting for setting in settings if not setting.startswith("rate="))
    return f"{name}:{own}" if own else name, f", rate {rates[0]}" if rates else ""
