"""The plot of ``gravac whatif``: T_comp by CF for one scenario; for a sweep, dense and the best CF."""

from collections.abc import Callable, Sequence
from typing import Any

from gravac_controller.cli.whatif import svg
from gravac_controller.cli.whatif.show import rate
from gravac_controller.cli.whatif.svg import Series
from gravac_controller.cli.wording import factor

SPEED = "samples a second"


def draw(answer: dict[str, Any]) -> str:
    """The SVG document."""
    scenarios: list[dict[str, Any]] = answer["scenarios"]
    if len(scenarios) == 1:
        return _by_factor(scenarios[0])
    rates = {each["bandwidth_bits_per_second"] for each in scenarios}
    counts = {each["ranks"] for each in scenarios}
    if len(rates) >= len(counts):
        return _sweep(
            scenarios, "bandwidth_bits_per_second", rate, "bandwidth of a link", "ranks", "{} ranks".format
        )
    return _sweep(scenarios, "ranks", "{:g}".format, "ranks", "bandwidth_bits_per_second", rate)


def _by_factor(scenario: dict[str, Any]) -> str:
    rows = scenario["factors"]
    series = [_speeds("T_sys: all", scenario, rows, 0)]
    known = [row for row in rows if row["useful_samples_per_second"]]
    if known:
        series.append(
            Series(
                name="T_comp: × gain",
                points=[(row["cf"], row["useful_samples_per_second"]) for row in known],
                band=[
                    (
                        row["useful_samples_per_second"]
                        * row["step_seconds"]
                        / row["high_seconds"]
                        * _low(row),
                        row["useful_samples_per_second"]
                        * row["step_seconds"]
                        / row["low_seconds"]
                        * _high(row),
                    )
                    for row in known
                ],
                colour=1,
            )
        )
    title = f"{scenario['ranks']} ranks on {rate(scenario['bandwidth_bits_per_second'])}, {scenario['compressor']}"
    return svg.chart(title, "compression factor", SPEED, series, factor)


def _low(row: dict[str, Any]) -> float:
    return float(row["gain_low"] / row["gain"])


def _high(row: dict[str, Any]) -> float:
    return float(row["gain_high"] / row["gain"])


def _speeds(name: str, scenario: dict[str, Any], rows: Sequence[dict[str, Any]], colour: int) -> Series:
    return Series(
        name=name,
        points=[(row["cf"], row["samples_per_second"]) for row in rows],
        band=[
            (
                row["samples_per_second"] * row["step_seconds"] / row["high_seconds"],
                row["samples_per_second"] * row["step_seconds"] / row["low_seconds"],
            )
            for row in rows
        ],
        colour=colour,
    )


def _sweep(
    scenarios: Sequence[dict[str, Any]],
    along: str,
    x_text: Callable[[float], str],
    x_label: str,
    apart: str,
    name: Callable[[Any], str],
) -> str:
    """A line of dense and one of the best CF for each value of ``apart``."""
    series: list[Series] = []
    for number, value in enumerate(dict.fromkeys(each[apart] for each in scenarios)):
        some = sorted(
            (each for each in scenarios if each[apart] == value), key=lambda each: float(each[along])
        )
        dense = [(each[along], each["factors"][0]["samples_per_second"]) for each in some]
        series.append(Series(name=f"{name(value)}, dense", points=dense, colour=number, dashed=True))
        best = [
            (each[along], row["useful_samples_per_second"])
            for each in some
            for row in each["factors"]
            if row["cf"] == each["best_cf"]
        ]
        if best:
            series.append(Series(name=f"{name(value)}, best CF", points=best, colour=number))
    return svg.chart("T_comp: samples a second, times the gain", x_label, SPEED, series, x_text)
