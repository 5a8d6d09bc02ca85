"""A trace as time series: OpenMetrics for Prometheus, event files for TensorBoard.

OpenMetrics: the metrics of ``/metrics`` with times, one sample a window, which ``promtool tsdb create-blocks-from
openmetrics`` turns into blocks. Dashboards then show an old run as they show a live one. TensorBoard: a scalar for each
column of the table of windows, by step; the extra ``gravac[tensorboard]`` installs the writer, which needs no torch.
"""

import math
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from gravac_controller.errors import needs
from gravac_controller.metrics.definitions import JobMetric, JobValues
from gravac_controller.metrics.table import TABLE
from gravac_controller.replay.job import ReplayedLive
from gravac_controller.views.columns import COLUMNS, row_of
from gravac_controller.views.models import DecisionView, WindowView

PREFIX = "gravac/"
"""Prefix of the tags in TensorBoard."""
NOT_DRAWN = {"window", "first_step", "last_step", "time"}
"""Columns that are the axes in TensorBoard."""
ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def write_openmetrics(
    windows: Iterable[tuple[WindowView, DecisionView | None]], live: ReplayedLive, path: Path
) -> int:
    """Write the metrics after each window of ``live``, which the iteration advances. Returns the number of windows.

    OpenMetrics groups samples by metric, so each metric is collected in a temporary file: memory does not grow with the
    trace. Times increase by at least a millisecond. Raises OSError.
    """
    rows, latest = 0, -math.inf
    with ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="gravac-export-"))
        files = [
            held.enter_context((Path(folder) / f"{number}").open("w+", encoding="utf-8"))
            for number in range(len(TABLE))
        ]
        for view, _ in windows:
            latest = max(latest + 0.001, view.time)
            seen = JobValues.of(live, show_ranks=False)
            for row, file in zip(TABLE, files, strict=True):
                file.writelines(_samples(row, seen, latest))
            rows += 1
        with path.open("w", encoding="utf-8") as out:
            for row, file in zip(TABLE, files, strict=True):
                _family(row, file, out)
            out.write("# EOF\n")
    return rows


def write_tensorboard(windows: Iterable[WindowView], folder: Path) -> int:
    """Write an event file into ``folder`` with scalars such as ``gravac/gain``, by the last step of each window.

    Unknown values have no point. Returns the number of windows. Raises MissingExtra without tensorboard, OSError.
    """
    with needs("tensorboard", "tensorboard"):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    writer, rows = EventFileWriter(str(folder)), 0
    try:
        for view in windows:
            values = [
                Summary.Value(tag=PREFIX + column.name, simple_value=float(value))
                for column, value in zip(COLUMNS, row_of(view), strict=True)
                if column.name not in NOT_DRAWN and isinstance(value, int | float)
            ]
            writer.add_event(
                Event(wall_time=view.time, step=view.report.last_step, summary=Summary(value=values))
            )
            rows += 1
    finally:
        writer.close()
    return rows


def _samples(row: JobMetric, seen: JobValues, time: float) -> Iterable[str]:
    name = row.name + ("_total" if row.type == "counter" else "")
    for values, number in row.samples(seen):
        labels = ",".join(
            f'{label}="{value.translate(ESCAPES)}"'
            for label, value in zip(("job_name", *row.labels), (seen.spec.job, *values), strict=True)
        )
        yield f"{name}{{{labels}}} {float(number)!r} {time:.3f}\n"


def _family(row: JobMetric, samples: IO[str], out: IO[str]) -> None:
    """Write the header and the samples of a metric, unless it has no samples."""
    if samples.tell() == 0:
        return
    samples.seek(0)
    kind = "counter" if row.type == "counter" else "gauge"
    out.write(f"# HELP {row.name} {row.help.translate(ESCAPES)}\n# TYPE {row.name} {kind}\n")
    while piece := samples.read(1 << 20):
        out.write(piece)
