"""Clocks and tables of ``lab/benchmarks/time_to_loss.py``."""

from typing import Any

import pytest

from lab.benchmarks.time_to_loss import curve, levels, table

DENSE = [[32, 5.0, 3.0], [64, 10.0, 2.0], [96, 15.0, 1.5], [128, 20.0, 1.2], [160, 25.0, 1.0]]


def row(method: str, step_seconds: float, losses: list[float], **more: Any) -> dict[str, Any]:
    points = [[32 * n, 32 * n * step_seconds, loss] for n, loss in enumerate(losses, 1)]
    machine = {"processor": "P", "cores": 2, "date": "2026-11-27", "load_before": 0.5}
    made = {"task": "gpt", "steps": 160, "seed": 0, "baseline": "adamw", "link": "10mbit", "error": None}
    return (
        made
        | {"method": method, "sent_bytes": 2e3, "curve": points, "dense": DENSE, "machine": machine}
        | more
    )


def test_blocks_on_other_links_count_with_the_mean() -> None:
    blocks, losses = [1.0, 10.0, 3.0, 12.0, 8.0], [5.0, 4.0, 3.0, 2.0, 1.0]
    links = ["fast", "slow"]
    assert curve(blocks, losses, links, "fast", 8) == [
        (8, 1.0, 5.0), (16, 5.0, 4.0), (24, 8.0, 3.0), (32, 12.0, 2.0), (40, 20.0, 1.0)
    ]  # fmt: skip
    assert [at for _, at, _ in curve(blocks, losses, links, "slow", 8)] == [11.0, 21.0, 32.0, 44.0, 55.0]
    assert curve(blocks, losses, ["fast"], "fast", 8)[-1] == (40, 34.0, 1.0)
    assert curve([1.0, 9.0], [2.0], ["fast"], "fast", 8) == [(8, 1.0, 2.0)], (
        "it failed before the second loss"
    )


def test_the_table_names_the_first_and_who_never_arrives() -> None:
    assert levels(DENSE) == pytest.approx([1.2, 1.1])
    soon = [3.0, 2.0, 1.5, 1.3, 1.1]
    rows = [
        row("never", 0.1, [3.0, 2.5, 2.0, 1.9, 1.8, 1.7, 1.6]),
        row("first", 9.0, soon),  # measured again below
        row("first", 0.2, soon),
        row("second", 0.4, soon),
        row("first", 0.3, [*soon[:-1], 1.15, 1.05], seed=1),
        row("broken", 0.1, [3.0], error="rank 1 ended:\nlong"),
    ]
    lines = {line.split("`")[1]: line for line in table(rows) if line.startswith("| 10mbit")}
    assert "160 steps, next to `dense@adamw` on 10gbit. P, 2 cores, 2026-11-27, load 0.5" in table(rows)[1]
    assert lines["never"].endswith(
        " | not within 224 steps, ended at 1.6000 | not within 224 steps, ended at 1.6000 |"
    )
    assert "| 0, 1 | 250 (200 to 300) ms | 2 kB | 1.60 (1.28 to 1.92) |" in lines["first"]
    assert lines["first"].endswith(" | **36.8 (28.8 to 44.8) s** | **42.4 (32.0 to 52.8) s** |")
    assert lines["second"].endswith(" | 57.6 s | 64.0 s |")
    assert lines["broken"] == "| 10mbit | `broken` | 0 | failed: rank 1 ended: |"
