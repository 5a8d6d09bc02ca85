"""How many steps late gradients are behind dense in a young training, by the rows of the study of AdamW.

    python -m lab.benchmarks.young

For each plan of ``gravac.optim``'s rule and step of the training: the steps by which its held-out loss is behind that
of dense with the same task, seed and betas; below 0: ahead. Medians over runs, and the worst.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gravac_lab.simulate.pool import read_lines

ROWS = Path(__file__).with_name("adam.jsonl.xz")
RULE = "late:move=eager,age=pooled"
PLANS = {"topk+twobit@5.1": "25x", "topk+twobit@16.6": "64x", "topk+twobit@36": "123x"}
STEPS = (20, 30, 40, 60, 100, 200, 300)


def dense_step(curve: Sequence[Sequence[float]], loss: float) -> float | None:
    """Return the step at which a curve reaches a loss; None: never."""
    before: tuple[float, float] | None = None
    for step, held, *_ in curve:
        if held <= loss:
            if before is None or before[1] <= held:
                return step
            return before[0] + (step - before[0]) * (before[1] - loss) / (before[1] - held)
        before = step, held
    return None


def behind(dense: Sequence[Sequence[float]], late: Sequence[Sequence[float]], step: int) -> float | None:
    """Return the steps by which a run is behind dense at about a step; None: dense never gets there."""
    at, loss, *_ = min(late, key=lambda point: abs(point[0] - step))
    reached = dense_step(dense, loss)
    return None if reached is None or abs(at - step) > 10 else at - reached


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the table."""
    base = {_key(row): row["curve"] for row in rows if row["plan"] == "dense" and row["rule"] == "adamw"}
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        if row["plan"] in PLANS and row["rule"] == RULE and row["beta1"] > 0.6 and _key(row) in base:
            for step in STEPS:
                late = behind(base[_key(row)], row["curve"], step)
                if late is not None:
                    found[row["plan"], step].append(late)
    lines = [
        "| fewer bytes | " + " | ".join(f"step {step}" for step in STEPS) + " |",
        "|---|" + "---:|" * len(STEPS),
    ]
    for plan, fewer in PLANS.items():
        cells = [found[plan, step] for step in STEPS]
        lines.append(
            f"| {fewer} | "
            + " | ".join(
                f"{median(each):+.1f} ({max(each):+.0f}; {len(each)})" if each else "-" for each in cells
            )
            + " |"
        )
    return lines


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["task"], row["ranks"], row["steps"], row["seed"], row["beta1"]


if __name__ == "__main__":
    print("\n".join(table(read_lines(ROWS))))
