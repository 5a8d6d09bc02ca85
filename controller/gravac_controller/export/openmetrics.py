"""A trace as OpenMetrics with times, for Prometheus to backfill: ``promtool tsdb create-blocks-from openmetrics``.

The metrics are those of ``/metrics``, one sample a window, so that dashboards show an old run as they show a live one.
"""

import math
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from gravac_controller.metrics.definitions import JobMetric, JobValues
from gravac_controller.metrics.table import TABLE
from gravac_controller.replay.job import ReplayedLive
from gravac_controller.views.models import DecisionView, WindowView

ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def write_openmetrics(
    windows: Iterable[tuple[WindowView, DecisionView | None]], live: ReplayedLive, path: Path
) -> int:
    """Write what a scrape would have said after each window of ``live``, which the iteration moves on.

    Samples of a metric must stand together, so each waits in a file of its own until the end: memory does not grow
    with the trace. Times only go on, a millisecond at least. Returns the windows. Raises OSError.
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


def _samples(row: JobMetric, seen: JobValues, time: float) -> Iterable[str]:
    name = row.name + ("_total" if row.type == "counter" else "")
    for values, number in row.samples(seen):
        labels = ",".join(
            f'{label}="{value.translate(ESCAPES)}"'
            for label, value in zip(("job_name", *row.labels), (seen.spec.job, *values), strict=True)
        )
        yield f"{name}{{{labels}}} {float(number)!r} {time:.3f}\n"


def _family(row: JobMetric, samples: IO[str], out: IO[str]) -> None:
    """A metric's head and its samples; nothing where it has none."""
    if samples.tell() == 0:
        return
    samples.seek(0)
    kind = "counter" if row.type == "counter" else "gauge"
    out.write(f"# HELP {row.name} {row.help.translate(ESCAPES)}\n# TYPE {row.name} {kind}\n")
    while piece := samples.read(1 << 20):
        out.write(piece)
