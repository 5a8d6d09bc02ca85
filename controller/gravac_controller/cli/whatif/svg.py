"""A line chart as SVG: logarithmic axes, a likely range as a band. Text is escaped; nothing is fetched."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 78, 170, 46, 58
LEGEND_LINE = 20
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
"""Okabe and Ito's, which colour-blind people tell apart."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """``points``: (x, y) with x ascending, all above 0. ``band``: (low, high) a point, or none.
    ``colour``: by number."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()
    colour: int = 0
    dashed: bool = False


def chart(
    title: str, x_label: str, y_label: str, series: Sequence[Series], x_text: Callable[[float], str]
) -> str:
    """The document. ``x_text`` writes the numbers of the x axis, which has a tick at each x of the series.

    Raises ValueError when there is no point to draw.
    """
    xs = sorted({x for one in series for x, _ in one.points})
    ys = [y for one in series for _, y in one.points] + [
        y for one in series for pair in one.band for y in pair
    ]
    if not xs or min(xs) <= 0 or min(ys) <= 0:
        raise ValueError("nothing to draw: no values above 0")
    x_at = _scale(xs[0], xs[-1], LEFT, WIDTH - RIGHT)
    tall = max(HEIGHT, TOP + LEGEND_LINE * len(series) + 20)
    lowest, highest = _around(min(ys), max(ys))
    y_at = _scale(lowest, highest, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tall}" width="{WIDTH}" height="{tall}" '
        'font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{WIDTH}" height="{tall}" fill="#fff"/>',
        _text(LEFT, 24, title, size=14, weight="bold"),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x_label, anchor="middle"),
        f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2:.1f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>",
    ]
    for y in _ticks(lowest, highest):
        parts.append(_line(LEFT, y_at(y), WIDTH - RIGHT, y_at(y)))
        parts.append(_text(LEFT - 8, y_at(y) + 4, f"{y:g}", anchor="end"))
    last = -1e9
    for x in xs:
        if x_at(x) - last >= 52:  # else they would overlap
            last = x_at(x)
            parts.append(_line(last, HEIGHT - BOTTOM, last, HEIGHT - BOTTOM + 5, "#222"))
            parts.append(_text(last, HEIGHT - BOTTOM + 20, x_text(x), anchor="middle"))
    for number, one in enumerate(series):
        parts += _drawn(one, x_at, y_at, TOP + 14 + LEGEND_LINE * number)
    return "\n".join([*parts, "</svg>\n"])


def _drawn(
    one: Series, x_at: Callable[[float], float], y_at: Callable[[float], float], legend_y: float
) -> list[str]:
    colour = COLOURS[one.colour % len(COLOURS)]
    style = f'fill="none" stroke="{colour}" stroke-width="2"' + (
        ' stroke-dasharray="6 4"' if one.dashed else ""
    )
    parts = []
    if one.band:
        upper = [(x, high) for (x, _), (_, high) in zip(one.points, one.band, strict=True)]
        lower = [(x, low) for (x, _), (low, _) in zip(one.points, one.band, strict=True)]
        outline = _path([*upper, *lower[::-1]], x_at, y_at)
        parts.append(f'<polygon points="{outline}" fill="{colour}" opacity="0.15"/>')
    parts.append(f'<polyline points="{_path(one.points, x_at, y_at)}" {style}/>')
    parts += [f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3" fill="{colour}"/>' for x, y in one.points]
    left = WIDTH - RIGHT + 12
    parts.append(f'<line x1="{left}" y1="{legend_y - 4}" x2="{left + 24}" y2="{legend_y - 4}" {style}/>')
    parts.append(_text(left + 30, legend_y, one.name))
    return parts


def _path(
    points: Sequence[tuple[float, float]], x_at: Callable[[float], float], y_at: Callable[[float], float]
) -> str:
    return " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in points)


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Logarithmic; a single value lies in the middle."""
    if high <= low:
        return lambda value: (start + end) / 2
    span = math.log(high / low)
    return lambda value: start + (end - start) * math.log(value / low) / span


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade that lie within; only the decades where there are many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [
        digit * 10.0**decade for decade in decades for digit in ((1, 2, 5) if len(decades) < 5 else (1,))
    ]
    return [value for value in found if low * 0.999 <= value <= high * 1.001]


def _around(low: float, high: float) -> tuple[float, float]:
    """The nearest 1, 2 or 5 of a decade below and above."""

    def rounded(value: float, up: bool) -> float:
        decade = 10.0 ** math.floor(math.log10(value))
        steps = [digit * decade for digit in (1, 2, 5, 10)]
        fitting = [step for step in steps if (step >= value * 0.999 if up else step <= value * 1.001)]
        return min(fitting) if up else max(fitting)

    return rounded(low, False), rounded(high, True)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = "#ddd") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(
    x: float, y: float, text: str, anchor: str = "start", size: int = 12, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}">'
        f"{escape(text)}</text>"
    )
