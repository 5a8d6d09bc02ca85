"""The state of one job for readers: a projection of its journal, line by line, with bounded history.

It lives on the event loop and changes only in ``apply``, so readers need no locks. ``gravac.fold.JobFold`` makes the
decisions; this only keeps them for readers.
"""

from collections.abc import Iterator
from enum import Enum, auto

from pydantic import Field

from gravac.protocol import Decision, End, Event, JobSpec, Override, Record, WindowReport
from gravac.signals.loss_slope import LossBins
from gravac.signals.risk import RiskState
from gravac.traces.line import TraceRecord
from gravac.traces.parts import Part
from gravac_controller.live.counts import Counts
from gravac_controller.live.dense_step import DenseStep, comparable
from gravac_controller.live.learning import Learning
from gravac_controller.live.presence import Orders, Presence, order_event
from gravac_controller.live.recent import Change, Recent
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.models import DecisionView, EventView, LastKnown, State, Totals, WindowView

CARRIED_CHARACTERS = 150_000
"""Bound on ``Carried`` as JSON: it must fit into a journal line."""


class Carried(Record):
    """What a new part of a journal carries over from the parts before it, for readers. No decision depends on it."""

    started_time: float
    last_report_time: float | None
    totals: Totals
    windows: int = Field(description="Of all starts, as the next.")
    steps: int
    decision_count: int
    events_by_kind: dict[str, int]
    missing_windows: int
    dense_medians: tuple[float, ...]
    dense_exposed: tuple[float, ...]
    gradient_diversity: LastKnown | None
    batch_bound_samples: LastKnown | None
    dense_predicted: tuple[float, ...]
    losses: LossBins = Field(description="Of the training so far.")
    risk: RiskState | None = Field(description="Null before the first window.")
    events: tuple[EventView, ...] = Field(description="The last ones that fit.")

    def text(self) -> str:
        """Return the record as JSON, with as many of the last events as fit."""
        carried = self
        while len(text := carried.model_dump_json()) > CARRIED_CHARACTERS and carried.events:
            carried = carried.model_copy(update={"events": carried.events[(len(carried.events) + 1) // 2 :]})
        return text


class JournalPlace(Enum):
    """The place in its journal where a job is."""

    HEAD = auto()
    """A new part of the journal repeats the spec and the decision in force."""
    WINDOW = auto()
    """The last window waits for its decision."""
    BETWEEN = auto()
    """The last window is decided."""


class LiveJob:
    """One job, as its journal describes it up to ``line``.

    Attributes:
        spec: The job as its present start was registered; None before that.
        decision: The decision in force.
        latest: The last window.
        recent: What is kept of the windows, decisions and events before.
        presence: When the job was heard of.
        orders: What operators ordered.
        counts: Sums and counts.
        dense: How long a dense step takes.
        learning: What windows show of the training.
    """

    def __init__(self, settings: ControllerSettings) -> None:
        self.line = 0
        self.spec: JobSpec | None = None
        self.decision: Decision | None = None
        self.latest: WindowView | None = None
        self.recent = Recent(settings)
        self.presence, self.orders = Presence(settings), Orders(settings)
        self.counts, self.dense, self.learning = Counts(), DenseStep(), Learning()
        self._place = JournalPlace.BETWEEN

    # -- from the journal -------------------------------------------------------------------------------------

    def apply(self, line: int, time: float, record: TraceRecord) -> None:
        """Apply one journal line; ``line`` counts from 1. Call ``notify`` after the last one."""
        self.line = line
        head = self._place is JournalPlace.HEAD
        match record:
            case Part():
                self._place = JournalPlace.HEAD
                if self.spec is None and record.summary:
                    self._restore(Carried.model_validate_json(record.summary))
            case JobSpec() if head and self.spec is not None:
                pass
            case Decision() if head:
                self._place = JournalPlace.BETWEEN
                if self.decision is None:
                    self.decision, self.presence.decided_time = record, time
                    self.recent.add_decision(self._view(time, record, None))
            case JobSpec():
                self._apply_spec(time, record, head)
            case WindowReport():  # also in the head, where a torn tail has cut the decision off
                self._place = JournalPlace.WINDOW
                self._apply_window(time, record)
            case Decision():
                self._apply_decision(line, time, record)
            case Event():
                self._apply_event(line, EventView(time=time, event=record))
            case Override():
                self.orders.pending = record
                self._apply_event(line, EventView(time=time, event=order_event(record)))
            case End():
                self.presence.ended = True
                self.orders.end()
                self.recent.add_change(Change(line, end=record.message, time=time))

    def carried(self) -> str:
        """Return the summary that a new part of the journal begins with, so that readers need no part before it."""
        counts, dense, learning = self.counts, self.dense, self.learning
        return Carried(
            started_time=self.presence.started_time,
            last_report_time=self.presence.reported_time,
            totals=counts.totals,
            windows=counts.windows,
            steps=counts.steps,
            decision_count=counts.decisions,
            events_by_kind=dict(counts.events_by_kind),
            missing_windows=counts.missing_windows,
            dense_medians=tuple(dense.medians),
            dense_exposed=tuple(dense.exposed),
            dense_predicted=tuple(dense.predicted),
            gradient_diversity=learning.gradient_diversity,
            batch_bound_samples=learning.batch_bound_samples,
            losses=learning.losses.bins,
            risk=learning.light.state,
            events=tuple(self.recent.events),
        ).text()

    def _restore(self, carried: Carried) -> None:
        self.presence.started_time = carried.started_time
        self.presence.reported_time = carried.last_report_time
        self.counts.restore(
            carried.totals,
            carried.windows,
            carried.steps,
            carried.missing_windows,
            carried.decision_count,
            carried.events_by_kind,
        )
        self.dense.restore(carried.dense_medians, carried.dense_exposed, carried.dense_predicted)
        self.learning.restore(
            carried.losses, carried.risk, carried.gradient_diversity, carried.batch_bound_samples
        )
        self.recent.events.extend(carried.events)

    def _apply_event(self, line: int, view: EventView) -> None:
        self.counts.events_by_kind[view.event.kind] += 1
        self.recent.add_event(line, view)

    def _apply_spec(self, time: float, spec: JobSpec, head: bool) -> None:
        before = self.spec
        if before is None and not head:
            self.presence.started_time = time
        if before is None or before.incarnation != spec.incarnation:
            self.presence.ended = False
            if before is not None:
                self._begin_start(before, spec)
        self.spec = spec.model_copy(update={"policy_state": None}) if head else spec

    def _begin_start(self, before: JobSpec, spec: JobSpec) -> None:
        """Begin the sums again. What was measured counts until it is measured again, if the starts are comparable."""
        same = comparable(before, spec)
        self.orders.end()
        self.counts.begin_start()
        self.dense.begin_start(same)
        if not same:
            self.learning.forget()
        self.presence.earlier_incarnations.append(before.incarnation)

    def _apply_window(self, time: float, report: WindowReport) -> None:
        before = self.latest
        if before is not None:
            self.recent.add_window(before)
        spec, decision = self.spec_and_decision()
        self.latest = WindowView.of(time, report, spec)
        self.presence.reported_time = time
        self.counts.add(report, spec, None if before is None else before.report)
        self.recent.heat.add(report)
        self.learning.add(self.latest)
        self.dense.add(report, spec, decision)

    def _apply_decision(self, line: int, time: float, decision: Decision) -> None:
        before, self.decision = self.decision, decision
        latest = self.latest if self._place is JournalPlace.WINDOW else None
        if latest is not None:
            spec, _ = self.spec_and_decision()
            under = decision if before is None else before
            found = self.learning.judge(latest.report, spec, under, decision)
            if found is not None:
                self.latest = latest = latest.with_efficiency(found)
        self.presence.decided_time = time
        self.counts.decisions += 1
        view = self._view(time, decision, before)
        self.recent.add_decision(view)
        if latest is not None:
            self._place = JournalPlace.BETWEEN
            self.orders.pending = None
            self.recent.add_change(Change(line, window=latest, decision=view, time=time))

    def _view(self, time: float, decision: Decision, before: Decision | None) -> DecisionView:
        assert self.spec is not None
        return DecisionView.of(time, decision, before, self.spec.compressor)

    # -- for readers ------------------------------------------------------------------------------------------

    def spec_and_decision(self) -> tuple[JobSpec, Decision]:
        """Return the spec and the decision in force. Every served job has both: its journal begins with them."""
        assert self.spec is not None
        assert self.decision is not None
        return self.spec, self.decision

    @property
    def baseline_step_seconds(self) -> float | None:
        """Return the dense step as measured on today's network, in seconds; None where it was not."""
        return self.dense.measured_seconds(self.decision, self._report)

    @property
    def predicted_dense_step_seconds(self) -> float | None:
        """Return the dense step as predicted on today's network, in seconds; None while unknown, or if measured."""
        return self.dense.predicted_seconds(self.decision, self._report)

    @property
    def _report(self) -> WindowReport | None:
        return None if self.latest is None else self.latest.report

    def state(self) -> State:
        """Return whether the job runs, has been silent for too long, or has ended."""
        return self.presence.state(0.0 if self.latest is None else self.latest.report.seconds)

    @property
    def stale_seconds(self) -> float:
        """Seconds without a report after which the job is stale."""
        return self.presence.stale_seconds(0.0 if self.latest is None else self.latest.report.seconds)

    @property
    def window_seconds(self) -> float | None:
        """Return the wall time of the last window of the registered start of the trainer; None before its first."""
        if (
            self.latest is None
            or self.spec is None
            or self.latest.report.incarnation != self.spec.incarnation
        ):
            return None
        return self.latest.report.seconds

    def all_windows(self) -> Iterator[WindowView]:
        """Yield the windows in memory, oldest first."""
        yield from self.recent.windows
        if self.latest is not None:
            yield self.latest

    def changes_after(self, line: int) -> list[Change] | None:
        """Return the changes after journal line ``line``; None when they are no longer (or not yet) known."""
        return None if line > self.line else self.recent.changes_after(line)
