"""The figures of a finished training, read from its journal."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from gravac.protocol import Decision, JobSpec, WindowReport
from gravac.signals.figures import predicted_dense_step_seconds
from gravac.traces import TraceError, read_trace


@dataclass(frozen=True, kw_only=True)
class DemoFigures:
    """A job's history in numbers.

    Bytes: over all ranks. Seconds: median over windows of the median settled step of rank 0; None where there is no
    such step. ``baseline``: dense steps of the warm-up. ``predicted_dense``: a dense step as the windows that
    compressed predict it. ``changed_at``: step from which the emulated link carried another rate; figures of step times
    are of the steps before it, and what a dense step takes is known of the network at the start only.
    """

    job: JobSpec
    windows: tuple[WindowReport, ...]
    changed_at: int | None
    decisions: tuple[Decision, ...]
    dense_bytes: int
    payload_bytes: int
    hold_dense_bytes: int
    hold_payload_bytes: int
    baseline_step_seconds: float | None
    predicted_dense_step_seconds: float | None
    hold_step_seconds: float | None

    @property
    def changes(self) -> int:
        """How often the candidate CF changed."""
        factors = [decision.cf_candidate for decision in self.decisions]
        return sum(before != after for before, after in pairwise(factors))


def collect(path: Path, changed_at: int | None = None) -> DemoFigures:
    """Read a job's journal. Raises gravac.traces.TraceError when it cannot be read or has no job."""
    job: JobSpec | None = None
    windows: list[WindowReport] = []
    decisions: list[Decision] = []
    for line in read_trace(path):
        if isinstance(line.record, JobSpec):
            job = line.record
        elif isinstance(line.record, WindowReport):
            windows.append(line.record)
        elif isinstance(line.record, Decision):
            decisions.append(line.record)
    if job is None:
        raise TraceError(str(path), None, "is empty")
    by_epoch = {decision.epoch: decision for decision in decisions}
    levels = [level for report in windows for level in report.levels]
    held = [level for level in levels if level.epoch in by_epoch and by_epoch[level.epoch].phase == "hold"]
    timed = [report for report in windows if changed_at is None or report.last_step < changed_at]
    of_timed = {id(level) for report in timed for level in report.levels}
    dense = [level for level in levels if level.epoch in by_epoch and by_epoch[level.epoch].dense]
    return DemoFigures(
        job=job,
        windows=tuple(windows),
        changed_at=changed_at,
        decisions=tuple(decisions),
        dense_bytes=sum(report.dense_bytes for report in windows),
        payload_bytes=sum(report.payload_bytes for report in windows),
        hold_dense_bytes=sum(level.dense_bytes for level in held),
        hold_payload_bytes=sum(level.payload_bytes for level in held),
        baseline_step_seconds=typical(
            [level.step_seconds_median for level in dense if id(level) in of_timed]
        ),
        predicted_dense_step_seconds=typical(
            [predicted_dense_step_seconds(report, job.plans) for report in timed]
        ),
        hold_step_seconds=typical([level.step_seconds_median for level in held if id(level) in of_timed]),
    )


def typical(found: Sequence[float | None]) -> float | None:
    """The median of what is known; None where nothing is."""
    known = [each for each in found if each is not None]
    return median(known) if known else None
