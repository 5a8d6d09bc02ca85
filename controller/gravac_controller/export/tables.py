"""What is exported as a table: the windows of a trace, or their steps where the trace lists them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from gravac.protocol import STEP_COLUMNS as DETAIL
from gravac.protocol import WindowReport
from gravac.traces import TraceError, read_trace
from gravac_controller.report.told import journal
from gravac_controller.views.columns import COLUMNS, PHASES, Value, row_of
from gravac_controller.views.models import WindowView

WHOLE = ("epoch", "payload_bytes", "nonfinite_ranks", "failed_ranks")


@dataclass(frozen=True, slots=True)
class Column:
    """``kind``: what its values are, but for None, which is: unknown."""

    name: str
    kind: Literal["integer", "number", "text"]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows as long as ``columns``; read once."""

    columns: tuple[Column, ...]
    rows: Iterable[tuple[Value, ...]]


def of_windows(views: Iterable[WindowView]) -> Table:
    """A row a window."""
    return Table(tuple(Column(each.name, each.kind) for each in COLUMNS), map(row_of, views))


def of_steps(path: Path, notes: list[str]) -> Table:
    """A row a step, of the windows that list theirs. Raises TraceError, also when none does; its rows raise it too."""
    columns = [Column("step", "integer"), Column("window", "integer")]
    for name in DETAIL:
        unit = "_seconds" if name in PHASES else ""
        columns.append(Column(name + unit, "integer" if name in WHOLE else "number"))
    rows = _steps(path, notes)
    first = next(rows, None)
    if first is None:
        message = "no window lists its steps: train with the agent's setting step_rows (GRAVAC_STEP_ROWS=20)"
        raise TraceError(str(path), None, message)
    return Table(tuple(columns), chain([first], rows))


def _steps(path: Path, notes: list[str]) -> Iterator[tuple[Value, ...]]:
    trace = read_trace(journal(path))
    for line in trace:
        if isinstance(line.record, WindowReport) and line.record.steps is not None:
            detail = line.record.steps
            rows = zip(*(getattr(detail, name) for name in DETAIL), strict=True)
            for step, row in enumerate(rows, detail.first_step):
                yield (step, line.record.window, *row)
    notes += trace.notes
