"""The figure of a report: compression factor and gain over steps, a line for each job, as SVG or PNG.

Drawn with matplotlib, which the extra ``gravac[plots]`` installs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gravac.wording import printable
from gravac_controller.errors import needs
from gravac_controller.report.summary import TraceSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#000000")
"""The palette of Okabe and Ito, which color-blind readers can tell apart."""
DASHES = ((1, 0), (7, 4), (2, 3))
"""Dashes, on and off in points: the next pattern once every color has been used."""
LONGEST_NAME = 40
"""Characters of a name that fit in a legend of two columns."""
DOTS_PER_INCH = 200
GRID = "#e3e7eb"


@dataclass(frozen=True, slots=True)
class Lines:
    """What is drawn of a job. By window: its first and last step, the CF sent, and the gain (None: unknown)."""

    name: str
    first: Sequence[float]
    steps: Sequence[float]
    cfs: Sequence[float]
    gains: Sequence[float | None]

    def factor_line(self) -> list[tuple[float, float]]:
        """Corners (step, CF) of the line of the CF, which is constant within a window."""
        found: list[tuple[float, float]] = []
        for first, last, cf in zip(self.first, self.steps, self.cfs, strict=True):
            if len(found) >= 2 and found[-1][1] == found[-2][1] == cf:
                found[-1] = (last, cf)
            else:
                found += [(first, cf), (last, cf)]
        return found

    def gain_line(self) -> list[tuple[float, float]]:
        """Points (step, gain); an unknown gain is NaN, which leaves a gap in the line."""
        return [
            (step, math.nan if gain is None else gain)
            for step, gain in zip(self.steps, self.gains, strict=True)
        ]


def lines_of(summary: TraceSummary, name: str) -> Lines:
    """Return the lines of one trace, labeled ``name``."""

    def column(title: str) -> list[float]:
        return [window.number(title) or 0.0 for window in summary.history.windows]

    return Lines(
        name=name,
        first=column("first_step"),
        steps=column("last_step"),
        cfs=column("cf"),
        gains=[window.number("gain") for window in summary.history.windows],
    )


def write_figure(jobs: Sequence[Lines], path: Path, form: Literal["svg", "png"]) -> None:
    """Draw the CF (logarithmic, from dense upward) above the gain.

    Raises:
        ValueError: No job has a window.
        MissingExtra: Matplotlib is not installed.
        OSError: ``path`` cannot be written.
    """
    if not any(job.steps for job in jobs):
        raise ValueError("there is no window to draw")
    figure = new_figure(7.2, 5.2)
    above, below = figure.subplots(2, 1, sharex=True)
    handles = []
    for number, job in enumerate(jobs):
        handles += _line(above, job.factor_line(), number)
        _line(below, job.gain_line(), number)
    highest = 1.15 * max(10.0, *(cf for job in jobs for cf in job.cfs))
    above.set(yscale="log", ylim=(0.9, highest), ylabel="Compression factor")
    above.set_yticks(factor_ticks(highest), [factor_label(tick) for tick in factor_ticks(highest)])
    above.minorticks_off()
    below.set(ylim=(0, 1.03), ylabel="Gain", xlabel="Step")
    for axes in (above, below):
        axes.grid(color=GRID)
    if len(jobs) > 1:
        add_legend(figure, handles, [_short(job.name) for job in jobs], columns=2)
    save(figure, path, form)


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of that many inches. Raises MissingExtra where matplotlib is not installed."""
    with needs("plots", "matplotlib"):
        from matplotlib.figure import Figure
    return Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")


def add_legend(figure: "Figure", handles: Sequence[Any], names: Sequence[str], columns: int) -> None:
    """A legend above the axes. Names are shown as they are: ``$`` begins no formula."""
    # A name that begins with an underscore would be left out.
    shown = [f" {name}" if name.startswith("_") else name for name in map(printable, names)]
    legend = figure.legend(handles, shown, loc="outside upper left", ncols=columns, fontsize=8, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)


def save(figure: "Figure", path: Path, form: Literal["svg", "png"]) -> None:
    """Write the figure. The same figure gives the same SVG: no date, no random ids; text stays text."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "gravac", "svg.fonttype": "none"}):
        figure.savefig(path, format=form, metadata={"Date": None} if form == "svg" else None)


def factor_ticks(highest: float) -> list[float]:
    """CFs to label: 1, 2 and 5 of each decade; only the decades where there are many."""
    digits = (1, 2, 5) if highest < 150 else (1,)
    found = [digit * 10.0**decade for decade in range(math.ceil(math.log10(highest))) for digit in digits]
    return [tick for tick in found if tick <= highest]


def factor_label(cf: float) -> str:
    """A CF at the axis."""
    return "dense" if cf == 1 else f"{cf:,.0f}"


def _line(axes: "Axes", points: Sequence[tuple[float, float]], number: int) -> list[Any]:
    """Draw one line in the style of the ``number``-th job; a single point is a dot."""
    dashes = DASHES[number // len(COLORS) % len(DASHES)]
    marker = "." if len(points) == 1 else ""
    steps, values = [x for x, _ in points], [y for _, y in points]
    color = COLORS[number % len(COLORS)]
    return axes.plot(steps, values, color=color, linewidth=1.3, dashes=dashes, marker=marker)


def _short(name: str) -> str:
    """Return the name; a long one without its middle, because its end distinguishes runs."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"
