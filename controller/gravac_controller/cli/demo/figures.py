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
class Figures:
    """A job's history in numbers.

    Bytes: over all ranks. Seconds: median over windows of the median settled step of rank 0; None where there is no
    such step. ``baseline``: dense steps of the warm-up. ``predicted_dense``: a dense step as the windows that
    compressed predict it.
    """

    job: JobSpec
    windows: tuple[WindowReport, ...]
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

    def after(self, window: int) -> Decision | None:
        """The decision on a window."""
        return next((decision for decision in self.decisions if decision.window == window), None)


def collect(path: Path) -> Figures:
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
    dense = [level for level in levels if level.epoch in by_epoch and by_epoch[level.epoch].dense]
    return Figures(
        job=job,
        windows=tuple(windows),
        decisions=tuple(decisions),
        dense_bytes=sum(report.dense_bytes for report in windows),
        payload_bytes=sum(report.payload_bytes for report in windows),
        hold_dense_bytes=sum(level.dense_bytes for level in held),
        hold_payload_bytes=sum(level.payload_bytes for level in held),
        baseline_step_seconds=_typical([level.step_seconds_median for level in dense]),
        predicted_dense_step_seconds=_typical(
            [predicted_dense_step_seconds(report, job.plans) for report in windows]
        ),
        hold_step_seconds=_typical([level.step_seconds_median for level in held]),
    )


def _typical(found: Sequence[float | None]) -> float | None:
    known = [each for each in found if each is not None]
    return median(known) if known else None
