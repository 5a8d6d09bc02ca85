"""The columns of a window in tables. The page's CSV, reports and all exports share this list.

Names have their units: ``seconds`` is the length of the window, ``…_seconds`` a mean over its steps, ``time`` Unix
seconds. Unknown values are None, never 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gravac.signals import figures
from gravac_controller.views.models import WindowView

Value = int | float | str | None
PHASES = ("compute", "data_wait", "compress", "communicate", "decompress")


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a window. ``kind``: the type of its values other than None."""

    name: str
    kind: Literal["integer", "number", "text"]
    value: Callable[[WindowView], Value]


def _phase(name: str) -> Column:
    """Return the column of a phase: seconds of a step, mean over steps and ranks."""
    return Column(
        f"{name}_seconds",
        "number",
        lambda view: getattr(view.report.phases, name) / figures.steps(view.report),
    )


def _inside(view: WindowView, figure: str) -> float | None:
    """Return a figure of the links inside hosts, of a step; None: there is one level of links."""
    found = figures.links(view.report).get("inside")
    return None if found is None else getattr(found, figure)


COLUMNS: tuple[Column, ...] = (
    Column("window", "integer", lambda view: view.report.window),
    Column("first_step", "integer", lambda view: view.report.first_step),
    Column("last_step", "integer", lambda view: view.report.last_step),
    Column("time", "number", lambda view: view.time),
    Column("seconds", "number", lambda view: view.report.seconds),
    Column("epoch", "integer", lambda view: view.report.epoch),
    Column("phase", "text", lambda view: view.report.phase),
    Column("codec", "text", lambda view: None if view.report.cf == 1.0 else view.codec),
    Column("cf", "number", lambda view: view.report.cf),
    Column("plan", "text", lambda view: view.plan),
    Column("gain", "number", lambda view: view.gain),
    Column(
        "gain_candidate",
        "number",
        lambda view: view.gain_candidate if view.report.phase == "explore" else None,
    ),
    Column("backlog", "number", lambda view: view.backlog),
    Column("residual_ratio", "number", lambda view: view.residual_ratio),
    Column("wire_cf", "number", lambda view: view.wire_cf),
    Column("samples_per_second", "number", lambda view: view.samples_per_second),
    Column("efficiency", "number", lambda view: view.efficiency),
    Column("efficiency_low", "number", lambda view: view.efficiency_low),
    Column("efficiency_high", "number", lambda view: view.efficiency_high),
    Column("useful_samples_per_second", "number", lambda view: view.useful_samples_per_second),
    Column("compression_throughput", "number", lambda view: view.compression_throughput),
    Column("loss", "number", lambda view: view.report.loss),
    Column("nonfinite_steps", "integer", lambda view: view.report.nonfinite_steps),
    Column("failed_steps", "integer", lambda view: view.report.failed_steps),
    Column("inside_bytes", "number", lambda view: _inside(view, "bytes")),
    Column("inside_seconds", "number", lambda view: _inside(view, "seconds")),
    *(_phase(name) for name in PHASES),
)
"""Columns in the order of the page's CSV (``static/rows.js``)."""

NAMES = tuple(column.name for column in COLUMNS)


def row_of(view: WindowView) -> tuple[Value, ...]:
    """Return the window's values, one for each of ``COLUMNS``."""
    return tuple(column.value(view) for column in COLUMNS)
