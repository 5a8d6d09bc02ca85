"""Plots of a tournament: loss curves of each task, and retained value against the CF on the wire."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gravac.wording import printable
from gravac_controller.report.figure import COLORS, DASHES, GRID, add_legend, new_figure, save
from gravac_lab.tournament import Run


def draw(runs: Sequence[Run], rows: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Write the plots as SVG, and return their paths.

    Args:
        runs: Of the tournament; curves are of the lowest seed of each plan.
        rows: Its summary.
        folder: Where to; made if it is not there.

    Raises:
        MissingExtra: matplotlib is not installed.
        OSError: ``folder`` cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[tuple[str, int, int], dict[str, Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        groups.setdefault((run.task, run.ranks, run.steps), {}).setdefault(run.plan, run)
    found = []
    for (task, ranks, steps), plans in groups.items():
        path = folder / f"loss-{re.sub(r'[^A-Za-z0-9.]+', '-', task)}-{ranks}-ranks-{steps}-steps.svg"
        _curves(f"{task}, {ranks} ranks", plans, path)
        found.append(path)
    if any(row["retained"] is not None and row["wire_cf"] is not None for row in rows):
        path = folder / "retained.svg"
        _retained(rows, path)
        found.append(path)
    return found


def _curves(title: str, plans: dict[str, Run], path: Path) -> None:
    """Held-out loss by step, a line for each plan."""
    figure = new_figure(7.6, 4.6 + 0.2 * (len(plans) // 3))
    axes = figure.subplots()
    handles = []
    for number, run in enumerate(plans.values()):
        dashes = DASHES[number // len(COLORS) % len(DASHES)]
        color = COLORS[number % len(COLORS)]
        handles += axes.plot(run.curve.at, run.curve.losses, color=color, linewidth=1.3, dashes=dashes)
    late = [loss for run in plans.values() for loss in run.curve.losses[len(run.curve.losses) // 8 :]]
    axes.set(xlabel="Step", ylabel="Held-out loss", ylim=(0.98 * min(late), 1.02 * max(late)))
    axes.set_title(printable(title), fontsize=11, loc="left", parse_math=False)
    axes.grid(color=GRID)
    add_legend(figure, handles, list(plans), columns=3)
    save(figure, path, "svg")


def _retained(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Retained value against the CF on the wire: a color for each task and number of ranks, bars for the spread."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["retained"] is not None and row["wire_cf"] is not None:
            groups.setdefault(f"{row['task']}, {row['ranks']} ranks", []).append(row)
    figure = new_figure(7.6, 4.8 + 0.2 * (len(groups) // 2))
    axes = figure.subplots()
    handles = []
    for number, members in enumerate(groups.values()):
        points = sorted(members, key=lambda row: float(row["wire_cf"]))
        at = [row["wire_cf"] for row in points]
        spreads = [row["retained"] for row in points]
        color, marker = COLORS[number % len(COLORS)], "os^v"[number // len(COLORS) % 4]
        middle = [spread["median"] for spread in spreads]
        handles += axes.plot(at, middle, color=color, marker=marker, markersize=4, linestyle="none")
        axes.vlines(
            at, [spread["low"] for spread in spreads], [spread["high"] for spread in spreads], color=color
        )
    axes.axhline(1.0, color="#000000", linewidth=0.8)
    axes.axhline(0.0, color="#000000", linewidth=0.8, dashes=(4, 3))
    axes.set(xscale="log", xlabel="Compression factor on the wire", ylabel="Retained value")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(color=GRID)
    add_legend(figure, handles, list(groups), columns=2)
    save(figure, path, "svg")
