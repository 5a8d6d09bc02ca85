"""The content of a report about one trace: the final state of the job, its windows and decisions, and its figures."""

import math
import statistics
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gravac.protocol import Decision, WindowReport
from gravac.signals import figures
from gravac.traces import TraceError, read_trace
from gravac.traces.parts import ACTIVE
from gravac_controller.live import job_views
from gravac_controller.lock import being_written
from gravac_controller.replay.job import ReplayedLive
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.history import History
from gravac_controller.views.models import DecisionView, JobView, RankHeatView, Totals, WindowView

MOST_WINDOWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """Figures of one job over the windows of the last start that has any. None: unknown."""

    windows: int
    steps: int
    seconds: float
    step_seconds_median: float | None
    efficiency: float | None
    """η of the whole start: mean over windows, weighted by their steps."""
    useful_samples_per_second: float | None
    """T_sys · η of the windows that show η."""
    compression_throughput: float | None
    """GraVAC's T_comp = T_sys · gain of the windows that show a gain."""
    payload_bytes: int
    dense_bytes: int
    wire_cf: float | None
    loss: float | None
    """The last logged loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """The content of a report about one trace."""

    path: str
    view: JobView
    heat: RankHeatView
    history: History
    figures: JobFigures
    notes: tuple[str, ...]


def journal_path(path: Path) -> Path:
    """Return the file of a trace: ``path``, or the journal in the folder ``path``."""
    return path / ACTIVE if path.is_dir() else path


def windows_of(
    path: Path, live: ReplayedLive, notes: list[str] | None = None
) -> Iterator[tuple[WindowView, DecisionView | None]]:
    """Each window with the decision on it (None: the trace ends before it), while ``live`` follows the trace.

    Raises TraceError.
    """
    waiting: WindowView | None = None
    trace = read_trace(journal_path(path))
    for line in trace:
        if isinstance(line.record, WindowReport) and waiting is not None:
            yield waiting, None
            waiting = None
        live.apply(line.number, line.time, line.record)
        if isinstance(line.record, WindowReport):
            waiting = live.latest
        elif isinstance(line.record, Decision) and waiting is not None:
            yield waiting, live.recent.decisions[-1]
            waiting = None
    if waiting is not None:
        yield waiting, None
    if live.spec is None or live.decision is None:
        raise TraceError(str(path), None, "holds no job")
    if notes is not None:
        notes += trace.notes


def empty_job() -> ReplayedLive:
    """Return a job without data, which stores as little history as possible."""
    return ReplayedLive(ControllerSettings.model_construct().with_limits(history_windows=1))


def summarize(path: Path) -> TraceSummary:
    """Read a trace once. Of a longer one the report has ``MOST_WINDOWS`` windows (``Thinned``). Raises TraceError."""
    live, history, sums, notes = empty_job(), History(MOST_WINDOWS), _Sums(), list[str]()
    start, starts = "", 0
    for view, decision in windows_of(path, live, notes):
        history.begin(live.recent.decisions[0])
        if view.report.incarnation != start:
            start, starts, sums = view.report.incarnation, starts + 1, _Sums()
        sums.add(view)
        sums.totals = live.counts.totals
        history.add(view, decision)
    history.begin(live.recent.decisions[0])
    if starts > 1:
        notes.append(f"The training started {starts} times. Totals and figures are of its last start.")
    live.interrupted = not being_written(journal_path(path))
    return TraceSummary(
        path=str(path),
        view=job_views.job_view(live),
        heat=job_views.rank_heat(live),
        history=history,
        figures=sums.figures(),
        notes=tuple(notes),
    )


def labels(summaries: list[TraceSummary]) -> list[str]:
    """Return a unique name for each."""
    given: list[str] = []
    for summary in summaries:
        name, number = summary.view.job, 2
        while name in given:
            name, number = f"{summary.view.job} ({number})", number + 1
        given.append(name)
    return given


class _Sums:
    """The sums over the windows of one start that the figures need."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._steps = array("d")
        self._efficient, self._efficient_steps = array("d"), array("d")
        self._useful, self._useful_seconds = array("d"), array("d")
        self._gained, self._gained_seconds = array("d"), array("d")
        self._loss: float | None = None

    def add(self, view: WindowView) -> None:
        if view.usual_step_seconds is not None:
            self._steps.append(view.usual_step_seconds)
        steps = figures.steps(view.report)
        if view.efficiency is not None:
            self._efficient.append(steps * view.efficiency)
            self._efficient_steps.append(steps)
            self._useful.append(view.report.samples * view.efficiency)
            self._useful_seconds.append(view.report.seconds)
        if view.gain is not None:
            self._gained.append(view.report.samples * view.gain)
            self._gained_seconds.append(view.report.seconds)
        if view.report.loss is not None:
            self._loss = view.report.loss

    def figures(self) -> JobFigures:
        totals = self.totals
        return JobFigures(
            windows=totals.windows,
            steps=totals.steps,
            seconds=totals.seconds,
            step_seconds_median=statistics.median(self._steps) if self._steps else None,
            efficiency=figures.ratio(math.fsum(self._efficient), math.fsum(self._efficient_steps)),
            useful_samples_per_second=figures.ratio(math.fsum(self._useful), math.fsum(self._useful_seconds)),
            compression_throughput=figures.ratio(math.fsum(self._gained), math.fsum(self._gained_seconds)),
            payload_bytes=totals.payload_bytes,
            dense_bytes=totals.dense_bytes,
            wire_cf=figures.ratio(totals.dense_bytes, totals.payload_bytes),
            loss=self._loss,
        )


def thinning_note(summary: TraceSummary) -> str:
    """Return a sentence about the windows that are not shown; empty where all are shown."""
    windows = summary.history.windows
    if len(windows) == windows.windows:
        return ""
    return (
        f"{len(windows):,} of {windows.windows:,} windows are shown: of each {windows.run} in a row the "
        "first, those with the lowest gain, the largest backlog, the longest step and the highest loss, and up to four "
        "with a change or a fault. Totals and figures include all windows."
    )
