"""Rows of a tournament made by hand."""

import json
from pathlib import Path
from typing import Any

from gravac_lab.tournament import LossCurve, Run

AT = (10.0, 20.0, 30.0, 40.0, 50.0)
"""Steps at which the curve of a ``run`` has a point."""


def run(plan: str, losses: tuple[float, ...], seed: int = 1) -> Run:
    """Return a run of 50 steps with these held-out losses."""
    return Run(
        task="lm",
        plan=plan,
        ranks=4,
        seed=seed,
        steps=50,
        optimizer="sgd",
        elements=1000,
        payload_bytes=0.0,
        curve=LossCurve(AT, losses),
        sums={},
    )


def row(
    plan: str, losses: list[float], seed: int = 1, payload: float = 4000.0, **more: Any
) -> dict[str, Any]:
    steps = 10 * len(losses)
    return {
        "task": "lm",
        "plan": plan,
        "ranks": 4,
        "seed": seed,
        "steps": steps,
        "optimizer": "sgd",
        "elements": 1000,
        "payload_bytes": payload,
        "curve": [[10 * (at + 1), loss, 0.5, loss] for at, loss in enumerate(losses)],
        "sums": {},
    } | more


def written(folder: Path, *rows: dict[str, Any], end: str = "") -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows) + end)
    return path
