"""The main picture of a report for papers: CF and gain over steps, a line for each job, as SVG without dependencies."""

import math
from collections.abc import Callable, Sequence
from html import escape

from gravac_controller.report.lines import Lines

WIDTH, PANEL, GAP = 720, 190, 34
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 30, 46
A_ROW, LONGEST_NAME = 2, 40
"""Jobs in a row of the legend, and as many letters of a name as fit there."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#000000")
"""Okabe and Ito's, which colour-blind people tell apart."""
DASHES = ("", "7 4", "2 3")
At = Callable[[float], float]


def svg(jobs: Sequence[Lines]) -> str:
    """CF (logarithmic, from dense up) above gain. Text is escaped. Raises ValueError where no job has a window."""
    if not any(job.steps for job in jobs):
        raise ValueError("there is no window to draw")
    last = max(max(job.steps) for job in jobs if job.steps)
    highest = 1.15 * max(10.0, *(cf for job in jobs for cf in job.cfs))
    top = TOP + (20 * math.ceil(len(jobs) / A_ROW) + 10 if len(jobs) > 1 else 0)
    below = top + PANEL + GAP
    height = below + PANEL + BOTTOM
    x = _scale(0.0, max(last, 1.0), LEFT, WIDTH - RIGHT)
    cf = _scale(0.0, math.log(highest), top + PANEL, top)
    gain = _scale(0.0, 1.03, below + PANEL, below)
    steps = round_numbers(last)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        *_legend(jobs),
        *_frame(top, "Compression factor", [(cf(math.log(one)), named(one)) for one in factors(highest)]),
        *_frame(below, "Gain", [(gain(one), f"{one:g}") for one in (0.0, 0.25, 0.5, 0.75, 1.0)]),
    ]
    parts += [_text(x(step), below + PANEL + 18, f"{step:,.0f}", "middle") for step in steps]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 8, "Step", "middle"))
    for number, job in enumerate(jobs):
        parts.append(_path([(x(step), cf(math.log(max(1.0, one)))) for step, one in job.held()], number))
        parts += [_path([(x(step), gain(one)) for step, one in piece], number) for piece in job.known_gains()]
    return "\n".join([*parts, "</svg>", ""])


def factors(highest: float) -> list[float]:
    """CFs to label: 1, 2, 5 of each decade; only decades where they are many."""
    digits = (1, 2, 5) if highest < 150 else (1,)
    found = [digit * 10.0**decade for decade in range(math.ceil(math.log10(highest))) for digit in digits]
    return [one for one in found if one <= highest]


def named(cf: float) -> str:
    """A CF as the page writes it."""
    return "dense" if cf == 1 else f"{cf:,.0f}×"


def round_numbers(last: float) -> list[float]:
    """About six round numbers from 0 up to ``last``."""
    raw = max(last, 1.0) / 6
    decade = 10.0 ** math.floor(math.log10(raw))
    every = next(step * decade for step in (1, 2, 5, 10) if step * decade >= raw)
    return [every * number for number in range(int(last / every) + 1)]


def style(number: int) -> tuple[str, str]:
    """Colour and dashes of a job by its number."""
    return COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]


def _scale(low: float, high: float, start: float, end: float) -> At:
    return lambda value: start + (end - start) * (value - low) / (high - low)


def _frame(top: float, title: str, lines: Sequence[tuple[float, str]]) -> list[str]:
    parts = [_text(LEFT, top - 8, title, bold=True)]
    for y, label in lines:
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e3e7eb"/>')
        parts.append(_text(LEFT - 8, y + 4, label, "end"))
    return parts


def _legend(jobs: Sequence[Lines]) -> list[str]:
    parts = []
    for number, job in enumerate(jobs if len(jobs) > 1 else ()):
        left = LEFT + (WIDTH - LEFT - RIGHT) / A_ROW * (number % A_ROW)
        y = 18 + 20 * (number // A_ROW)
        parts += [_path([(left, y - 4), (left + 24, y - 4)], number), _text(left + 30, y, _short(job.name))]
    return parts


def _short(name: str) -> str:
    """The name, its middle left out where it is too long: its end tells runs apart."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"


def _path(points: Sequence[tuple[float, float]], number: int) -> str:
    colour, dashes = style(number)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    if len(points) == 1:
        return f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="2" fill="{colour}"/>'
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.6"{dashed}/>'


def _text(x: float, y: float, text: str, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
