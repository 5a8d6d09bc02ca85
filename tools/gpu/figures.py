"""A measured figure: what a step of ``make gpu`` writes, one JSON object a line, and what the table shows."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

PREFIX, MACHINE = "figure ", "machine "
"""What lines with a figure, and with facts about the machine, begin with in the output of a program."""
Unit = Literal["s", "B", "B/s", "x", "%", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure.

    Attributes:
        name: What was measured.
        value: Median where it was repeated.
        unit: Of ``value``; ``x`` is a ratio above 1 where ours is faster, ``%`` a share in percent.
        low: First quartile.
        high: Third quartile.
        least: The figure should be at least this.
        most: The figure should be at most this.
    """

    name: str
    value: float
    unit: Unit = ""
    low: float | None = None
    high: float | None = None
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the figure is what it should be; None where nothing was asked."""
        if self.least is None and self.most is None:
            return None
        return (self.least is None or self.value >= self.least) and (
            self.most is None or self.value <= self.most
        )

    def line(self) -> str:
        """Return the figure as a line of a program's output."""
        return PREFIX + json.dumps(asdict(self))

    def text(self) -> str:
        """Return value and quartiles as a reader wants them, such as ``3.20 ms (3.11 to 3.40)``."""
        text = _written(self.value, self.unit)
        if self.low is None or self.high is None:
            return text
        return f"{text} ({_written(self.low, self.unit)} to {_written(self.high, self.unit)})"

    def target(self) -> str:
        """Return what the figure should be and whether it is; empty where nothing was asked."""
        if self.met is None:
            return ""
        bound, word = (self.least, "at least") if self.least is not None else (self.most, "at most")
        assert bound is not None
        return f"{word} {_written(bound, self.unit)}: {'yes' if self.met else '**no**'}"


def figures_in(lines: Iterable[str]) -> list[Figure]:
    """Return the figures in the output of a program; the last one of a name counts."""
    found = {}
    for line in lines:
        if line.startswith(PREFIX):
            figure = Figure(**json.loads(line.removeprefix(PREFIX)))
            found[figure.name] = figure
    return list(found.values())


def machine_line(facts: dict[str, str]) -> str:
    """Return facts about the machine as a line of a program's output."""
    return MACHINE + json.dumps(facts)


def machine_in(lines: Iterable[str]) -> dict[str, str]:
    """Return the facts about the machine in the output of a program."""
    found: dict[str, str] = {}
    for line in lines:
        if line.startswith(MACHINE):
            found |= json.loads(line.removeprefix(MACHINE))
    return found


def _written(value: float, unit: str) -> str:
    if unit == "s":
        scale, name = next(((s, n) for s, n in ((1.0, "s"), (1e-3, "ms")) if abs(value) >= s), (1e-6, "µs"))
        return f"{value / scale:.3g} {name}"
    if unit in ("B", "B/s"):
        scale, name = next(
            ((s, n) for s, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if abs(value) >= s), (1.0, "B")
        )
        return f"{value / scale:.3g} {name}{unit[1:]}"
    number = f"{value:,.0f}" if abs(value) >= 1000 and value == round(value) else f"{value:.3g}"
    return f"{number} %" if unit == "%" else f"{number}{unit}"
