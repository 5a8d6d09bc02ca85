"""The plot of ``gravac whatif``: useful throughput by CF for one scenario; for a sweep, dense and the best plan."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gravac.wording import format_rate, printable
from gravac_controller.cli.wording import factor
from gravac_controller.report.figure import COLORS, GRID, add_legend, new_figure, save

SPEED = "samples per second"
MOST_TICKS = 12
"""Values of x that are labeled; of more of them every second, third, …"""


@dataclass(frozen=True, kw_only=True)
class Series:
    """``points``: (x, y), x ascending, all above 0. ``band``: (low, high) for each point, or empty."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()
    color: int = 0
    dashed: bool = False


def draw(answer: dict[str, Any], path: Path) -> None:
    """Write the plot as SVG.

    Raises:
        MissingExtra: Matplotlib is not installed.
        OSError: ``path`` cannot be written.
    """
    scenarios: list[dict[str, Any]] = answer["scenarios"]
    if len(scenarios) == 1:
        _by_factor(scenarios[0], path)
        return
    rates = {scenario["bandwidth_bits_per_second"] for scenario in scenarios}
    counts = {scenario["ranks"] for scenario in scenarios}
    if len(rates) >= len(counts):
        series = _sweep(scenarios, "bandwidth_bits_per_second", "ranks", "{} ranks".format)
        x_label, x_text = "bandwidth of a link", format_rate
    else:
        series = _sweep(scenarios, "ranks", "bandwidth_bits_per_second", format_rate)
        x_label, x_text = "ranks", "{:g}".format
    chart("Useful throughput: samples per second times statistical efficiency", x_label, series, x_text, path)


def chart(
    title: str, x_label: str, series: Sequence[Series], x_text: Callable[[float], str], path: Path
) -> None:
    """Write lines on logarithmic axes, with a tick at the values of x, as SVG.

    Raises:
        ValueError: There is no point, or one that is not above 0.
        MissingExtra: Matplotlib is not installed.
        OSError: ``path`` cannot be written.
    """
    xs = sorted({x for curve in series for x, _ in curve.points})
    if not xs or min(value for curve in series for point in curve.points for value in point) <= 0:
        raise ValueError("nothing to draw: no values above 0")
    columns = 3
    figure = new_figure(7.6, 4.4 + 0.2 * math.ceil(len(series) / columns))
    axes = figure.subplots()
    handles = []
    for curve in series:
        color = COLORS[curve.color % len(COLORS)]
        at, values = zip(*curve.points, strict=True)
        handles += axes.plot(at, values, "--" if curve.dashed else "-", color=color, marker="o", markersize=4)
        if curve.band:
            low, high = zip(*curve.band, strict=True)
            axes.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel=SPEED)
    axes.set_title(printable(title), fontsize=11, loc="left", parse_math=False)
    ticks = xs[:: math.ceil(len(xs) / MOST_TICKS)]
    axes.set_xticks(ticks, [x_text(x) for x in ticks])
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(color=GRID)
    add_legend(figure, handles, [curve.name for curve in series], columns)
    save(figure, path, "svg")


def _by_factor(scenario: dict[str, Any], path: Path) -> None:
    """Useful throughput by CF with its prediction interval; of one codec also T_sys and T_comp."""
    every = scenario["factors"]
    rows = [row for row in every if row["codec"] == scenario["compressor"]]
    series = [
        Series(
            name="T_sys: all samples",
            points=[(row["cf"], row["samples_per_second"]) for row in rows],
            band=[_interval(row, row["samples_per_second"]) for row in rows],
        )
    ]
    if len(rows) == len(every):
        series += _weighted(rows, "T_comp: samples × gain", "compression_throughput", "gain", 2)
        series += _weighted(rows, "useful: samples × η", "useful_samples_per_second", "efficiency", 1)
    else:
        series = []
        for number, codec in enumerate(dict.fromkeys(row["codec"] for row in every)):
            own = [row for row in every if row["codec"] == codec]
            series += _weighted(own, f"{codec}, useful", "useful_samples_per_second", "efficiency", number)
    rate = format_rate(scenario["bandwidth_bits_per_second"])
    title = f"{scenario['ranks']} ranks on {rate}, {scenario['compressor']}"
    chart(title, "compression factor", series, factor, path)


def _weighted(rows: Sequence[dict[str, Any]], name: str, rate: str, weight: str, color: int) -> list[Series]:
    """A line of ``rate`` = T_sys · ``weight`` with the intervals of both; no line where it is unknown everywhere."""
    known = [row for row in rows if row[rate]]
    if not known:
        return []
    band = []
    for row in known:
        low, high = _interval(row, row[rate])
        band.append((low * row[f"{weight}_low"] / row[weight], high * row[f"{weight}_high"] / row[weight]))
    return [Series(name=name, points=[(row["cf"], row[rate]) for row in known], band=band, color=color)]


def _interval(row: dict[str, Any], speed: float) -> tuple[float, float]:
    """Return the slowest and fastest speed that the prediction interval of the step time allows."""
    return speed * row["step_seconds"] / row["high_seconds"], speed * row["step_seconds"] / row["low_seconds"]


def _sweep(
    scenarios: Sequence[dict[str, Any]], along: str, group_by: str, name: Callable[[Any], str]
) -> list[Series]:
    """For each value of ``group_by``: a line of dense and one of the best plan, over ``along``."""
    series: list[Series] = []
    for number, value in enumerate(dict.fromkeys(scenario[group_by] for scenario in scenarios)):
        group = sorted(
            (scenario for scenario in scenarios if scenario[group_by] == value),
            key=lambda scenario: float(scenario[along]),
        )
        dense = [(scenario[along], scenario["factors"][0]["samples_per_second"]) for scenario in group]
        series.append(Series(name=f"{name(value)}, dense", points=dense, color=number, dashed=True))
        best = [
            (scenario[along], row["useful_samples_per_second"])
            for scenario in group
            for row in scenario["factors"]
            if (row["codec"], row["cf"]) == (scenario["best_codec"], scenario["best_cf"])
        ]
        if best:
            series.append(Series(name=f"{name(value)}, best plan", points=best, color=number))
    return series
