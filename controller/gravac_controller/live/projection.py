"""The state of one job for readers: a projection of its journal, line by line, with bounded history.

It lives on the event loop and changes only in ``apply``, so readers need no locks. ``gravac.fold.JobFold`` makes the
decisions; this only keeps them for readers.
"""

import asyncio
import statistics
from collections import Counter, deque
from collections.abc import Iterator
from time import time as unix_now

from pydantic import Field

from gravac.policies.windows import dense_baseline
from gravac.protocol import (
    Decision,
    End,
    Event,
    JobSpec,
    LevelSums,
    Override,
    Record,
    WindowReport,
    rule_label,
)
from gravac.signals import figures
from gravac.signals.loss_slope import LossBins, LossSlope
from gravac.signals.risk import RiskLight, RiskState, accepted_loss
from gravac.traces.line import TraceRecord
from gravac.traces.parts import Part
from gravac_controller.live.recent import Change, Recent
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.heat import RankHeat
from gravac_controller.views.models import DecisionView, EventView, LastKnown, State, Totals, WindowView

KEPT_EVENTS = 100
KEPT_INCARNATIONS = 64
STALE_WINDOWS = 5
MAX_SECONDS = 1e9
"""The largest value that a field of seconds may have."""
BASELINE_MEDIANS = PREDICTIONS = 32
PHASES = ("data_wait", "compute", "compress", "communicate", "decompress")
CARRIED_CHARACTERS = 150_000
"""Bound on ``Carried`` as JSON: it must fit into a journal line."""


class Carried(Record):
    """What a new part of a journal carries over from the parts before it, for readers. No decision depends on it."""

    started_time: float
    last_report_time: float | None
    totals: Totals
    windows: int = Field(description="Of all starts, as the next.")
    steps: int
    decisions_by_rule: dict[str, int]
    events_by_kind: dict[str, int]
    missing_windows: int
    phase_seconds: dict[str, float]
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


class LiveJob:
    """One job, as its journal describes it up to ``line``."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self.line = 0
        self.spec: JobSpec | None = None
        self.decision: Decision | None = None
        self.decided_time = 0.0
        self.started_time = 0.0
        self.last_report_time: float | None = None
        self.ended = False
        self.earlier_incarnations: deque[str] = deque(maxlen=KEPT_INCARNATIONS)
        """Starts of the trainer that another one has replaced, as far as this part of the journal shows."""
        self.override: Override | None = None
        """The order that the fold applies; None while the policy decides."""
        self.pending_override: Override | None = None
        """The order that the decision on the next window will apply."""
        self.latest: WindowView | None = None
        self.gradient_diversity: LastKnown | None = None
        self.batch_bound_samples: LastKnown | None = None
        self.losses = LossSlope()
        self.light = RiskLight()
        self.totals = Totals()
        """Totals of the present start of the trainer, as all sums, means and baselines are."""
        self.windows = self.steps = 0
        """Counts of all starts."""
        self.heat = RankHeat()
        self.decisions_by_rule: Counter[str] = Counter()
        self.events_by_kind: Counter[str] = Counter()
        self.missing_windows = 0
        self.phase_seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.recent = Recent(settings)
        self.events: deque[EventView] = deque(maxlen=KEPT_EVENTS)
        self._undecided = False
        self._dense_medians: deque[float] = deque(maxlen=BASELINE_MEDIANS)
        self._dense_exposed: deque[float] = deque(maxlen=BASELINE_MEDIANS)
        self._dense_predicted: deque[float] = deque(maxlen=PREDICTIONS)
        self._inherited = False  # the baseline is that of an earlier start
        self._changed = asyncio.Event()
        self._repeating = (
            False  # a new part of the journal begins by repeating the spec and the decision in force
        )

    # -- from the journal -------------------------------------------------------------------------------------

    def apply(self, line: int, time: float, record: TraceRecord) -> None:
        """Apply one journal line; ``line`` counts from 1. Call ``notify`` after the last one."""
        self.line = line
        match record:
            case Part():
                self._repeating = True
                if self.spec is None and record.summary:
                    self._restore(Carried.model_validate_json(record.summary))
            case JobSpec() if self._repeating and self.spec is not None:
                pass
            case Decision() if self._repeating:
                self._repeating = False
                if self.decision is None:
                    self.decision, self.decided_time = record, time
                    self.recent.add_decision(self._view(time, record, None))
            case JobSpec():
                self._apply_spec(time, record)
            case WindowReport():
                self._repeating = False  # a torn tail may have cut the decision off the part's head
                self._apply_window(time, record)
            case Decision():
                self._apply_decision(line, time, record)
            case Event():
                self._apply_event(line, EventView(time=time, event=record))
            case Override():
                self.pending_override = record
                self._apply_event(line, EventView(time=time, event=_order_event(record)))
            case End():
                self.ended = True
                self.override = self.pending_override = None  # an order ends with its start of the trainer
                self.recent.add_change(Change(line, end=record.message, time=time))

    def carried(self) -> str:
        """Return the summary that a new part of the journal begins with, so that readers need no part before it."""
        return Carried(
            started_time=self.started_time,
            last_report_time=self.last_report_time,
            totals=self.totals,
            windows=self.windows,
            steps=self.steps,
            decisions_by_rule=dict(self.decisions_by_rule),
            events_by_kind=dict(self.events_by_kind),
            missing_windows=self.missing_windows,
            phase_seconds=dict(self.phase_seconds),
            dense_medians=tuple(self._dense_medians),
            dense_exposed=tuple(self._dense_exposed),
            dense_predicted=tuple(self._dense_predicted),
            gradient_diversity=self.gradient_diversity,
            batch_bound_samples=self.batch_bound_samples,
            losses=self.losses.bins,
            risk=self.light.state,
            events=tuple(self.events),
        ).text()

    def _restore(self, carried: Carried) -> None:
        self.started_time, self.last_report_time = carried.started_time, carried.last_report_time
        self.totals = carried.totals
        self.windows, self.steps = carried.windows, carried.steps
        self.decisions_by_rule.update(carried.decisions_by_rule)
        self.events_by_kind.update(carried.events_by_kind)
        self.missing_windows = carried.missing_windows
        self.phase_seconds.update(carried.phase_seconds)
        self._dense_medians.extend(carried.dense_medians)
        self._dense_exposed.extend(carried.dense_exposed)
        self._dense_predicted.extend(carried.dense_predicted)
        self.gradient_diversity = carried.gradient_diversity
        self.batch_bound_samples = carried.batch_bound_samples
        self.losses = LossSlope(carried.losses)
        self.light = RiskLight(carried.risk)
        self.events.extend(carried.events)

    def _apply_event(self, line: int, view: EventView) -> None:
        self.events.append(view)
        self.events_by_kind[view.event.kind] += 1
        self.recent.add_change(Change(line, event=view, time=view.time))

    def _apply_spec(self, time: float, spec: JobSpec) -> None:
        if self.spec is None and not self._repeating:
            self.started_time = time
        if self.spec is None or self.spec.incarnation != spec.incarnation:
            self.ended = False
            if self.spec is not None:
                self.override = self.pending_override = None
                self._begin_start(_comparable(self.spec, spec))
                self.earlier_incarnations.append(self.spec.incarnation)
        self.spec = spec.model_copy(update={"policy_state": None}) if self._repeating else spec

    def _begin_start(self, comparable: bool) -> None:
        """Begin the sums again. What was measured counts until it is measured anew, if the start is ``comparable``."""
        self.totals, self.phase_seconds = Totals(), dict.fromkeys(PHASES, 0.0)
        self._dense_predicted.clear()
        self._inherited = comparable
        if not comparable:
            self.losses = LossSlope()
            self.gradient_diversity = self.batch_bound_samples = None
            self._dense_medians.clear()
            self._dense_exposed.clear()

    def _apply_window(self, time: float, report: WindowReport) -> None:
        if self.latest is not None:
            self.recent.add_window(self.latest)
        spec, _ = self.spec_and_decision()
        expected = spec.first_window if self.latest is None else self.latest.report.window + 1
        self.missing_windows += max(0, report.window - expected)
        self.latest = WindowView.of(time, report, spec)
        if figures.mostly_dense(report):
            self._measure_diversity(self.latest)
        self.last_report_time = time
        self._undecided = True
        self._add_up(report)
        self.heat.add(report)
        if report.loss is not None:
            self.losses.add(report.last_step, figures.steps(report), report.loss)
        for phase in PHASES:
            self.phase_seconds[phase] += getattr(report.phases, phase)
        if self.decision is not None:
            self._measure_baseline(dense_baseline(report, self.decision))
        predicted = figures.predicted_dense_step_seconds(report, spec.plans)
        if predicted is not None:
            self._dense_predicted.append(predicted)

    def _measure_baseline(self, level: LevelSums | None) -> None:
        if level is not None and level.step_seconds_median is not None and self._inherited:
            self._inherited = False
            self._dense_medians.clear()
            self._dense_exposed.clear()
        if level is not None and level.step_seconds_median is not None:
            self._dense_medians.append(level.step_seconds_median)
        if level is not None and level.exposed_seconds_median is not None:
            self._dense_exposed.append(level.exposed_seconds_median)

    def _measure_diversity(self, view: WindowView) -> None:
        window = view.report.window
        if view.gradient_diversity is not None:
            self.gradient_diversity = LastKnown(value=view.gradient_diversity, window=window)
        if view.batch_bound_samples is not None:
            self.batch_bound_samples = LastKnown(value=view.batch_bound_samples, window=window)

    def _apply_decision(self, line: int, time: float, decision: Decision) -> None:
        before, self.decision = self.decision, decision
        if self.latest is not None and self._undecided:
            self._judge(self.latest, decision if before is None else before, decision)
        self.decided_time = time
        self.decisions_by_rule[rule_label(decision.rule)] += 1
        view = self._view(time, decision, before)
        self.recent.add_decision(view)
        if self.latest is not None and self._undecided:
            self._undecided = False
            self.pending_override = None
            self.recent.add_change(Change(line, window=self.latest, decision=view, time=time))

    def _judge(self, latest: WindowView, before: Decision, decision: Decision) -> None:
        """Judge the last window, by the efficiency of its plan that the policy believes after it, if it has one.

        Args:
            latest: The window.
            before: The decision that it ran under.
            decision: The decision on it.
        """
        spec, _ = self.spec_and_decision()
        found = figures.believed(decision, before)
        self.light.add(
            latest.report,
            before.epsilon,
            spec.optimizer_kind,
            spec.compressor,
            accepted_loss(spec.policy),
            self.losses.slope(),
            spec.world_size,
            believed=found,
        )
        if found is not None:
            self.latest = latest.with_efficiency(found)

    def _view(self, time: float, decision: Decision, before: Decision | None) -> DecisionView:
        assert self.spec is not None
        return DecisionView.of(time, decision, before, self.spec.compressor)

    def _add_up(self, report: WindowReport) -> None:
        self.windows, self.steps = self.windows + 1, self.steps + figures.steps(report)
        old, inside = self.totals, report.inside
        self.totals = Totals(
            windows=old.windows + 1,
            steps=old.steps + figures.steps(report),
            samples=old.samples + report.samples,
            seconds=old.seconds + report.seconds,
            dense_bytes=old.dense_bytes + report.dense_bytes,
            payload_bytes=old.payload_bytes + report.payload_bytes,
            nonfinite_steps=old.nonfinite_steps + report.nonfinite_steps,
            failed_steps=old.failed_steps + report.failed_steps,
            inside_bytes=old.inside_bytes + (0 if inside is None else inside.sent_bytes),
            inside_seconds=old.inside_seconds + (0.0 if inside is None else inside.seconds),
        )

    # -- for readers ------------------------------------------------------------------------------------------

    def spec_and_decision(self) -> tuple[JobSpec, Decision]:
        """Return the spec and the decision in force. Every served job has both: its journal begins with them."""
        assert self.spec is not None
        assert self.decision is not None
        return self.spec, self.decision

    @property
    def control_enabled(self) -> bool:
        """Return whether operators may steer over HTTP."""
        return self._settings.control_token is not None

    def _dense_now(self) -> tuple[float | None, float | None] | None:
        """Return the dense step on today's network as the policy believes it: measured, and predicted.

        None where the policy says nothing of dense steps.
        """
        rows = () if self.decision is None else self.decision.candidates
        row = next((row for row in rows if row.cf == 1.0), None)
        if row is None or self.latest is None or row.efficiency is None:  # another policy predicts no steps
            return None
        report = self.latest.report
        samples = figures.ratio(report.samples or figures.steps(report), figures.steps(report))
        if samples is None or (row.predicted_samples_per_second is None and row.samples_per_second is None):
            return None
        if row.predicted_samples_per_second is not None:
            return None, figures.ratio(samples, row.predicted_samples_per_second)
        return figures.ratio(samples, row.samples_per_second or 0.0), None

    @property
    def baseline_step_seconds(self) -> float | None:
        """Return the dense step as measured on today's network, in seconds; None where it was not.

        Of a policy that does not follow the network it is the median of the dense steps of the warm-up windows.
        """
        now = self._dense_now()
        if now is not None:
            return now[0]
        return statistics.median(self._dense_medians) if self._dense_medians else None

    @property
    def predicted_dense_step_seconds(self) -> float | None:
        """Return the dense step as predicted on today's network, in seconds; None while unknown, or if measured."""
        now = self._dense_now()
        if now is not None:
            return now[1]
        return statistics.median(self._dense_predicted) if self._dense_predicted else None

    @property
    def baseline_exposed_seconds(self) -> float | None:
        """Return the median network wait of a dense step in the warm-up, in seconds; None while unknown."""
        return statistics.median(self._dense_exposed) if self._dense_exposed else None

    def state(self) -> State:
        """Return whether the job runs, has been silent for too long, or has ended."""
        if self.ended:
            return "ended"
        last = self.last_report_time if self.last_report_time is not None else self.started_time
        return "stale" if unix_now() - last > self.stale_seconds else "running"

    @property
    def stale_seconds(self) -> float:
        """Seconds without a report after which the job is stale."""
        window_seconds = self.latest.report.seconds if self.latest is not None else 0.0
        return min(max(self._settings.limits.stale_seconds, STALE_WINDOWS * window_seconds), MAX_SECONDS)

    def silent_seconds(self) -> float:
        """Return the seconds since the last registration or window; a decision follows each."""
        return unix_now() - self.decided_time

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

    @property
    def decisions(self) -> deque[DecisionView]:
        """Return the decisions in memory, oldest first."""
        return self.recent.decisions

    def changes_after(self, line: int) -> list[Change] | None:
        """Return the changes after journal line ``line``; None when they are no longer (or not yet) known."""
        return None if line > self.line else self.recent.changes_after(line)

    @property
    def changed(self) -> asyncio.Event:
        """Return the event of the next change. Get it before reading, so that none is missed before waiting."""
        return self._changed

    def notify(self) -> None:
        """Wake all tasks that wait for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _comparable(before: JobSpec, spec: JobSpec) -> bool:
    """Return whether a dense step takes as long in a start as in the one before, as far as one can know."""
    one, other = (
        (
            it.world_size,
            it.link,
            it.model,
            it.environment.backend,
            it.environment.device,
            it.environment.platform,
        )
        for it in (before, spec)
    )
    return one == other


def _order_event(order: Override) -> Event:
    """Return an operator's order as an event for people."""
    action = {
        "pin": f"pinned CF {order.cf or 1:g}{'' if order.codec is None else f' of {order.codec}'}",
        "dense": "ordered dense",
        "pause": "paused exploring",
        "resume": "gave the decision back to the policy",
    }[order.action]
    note = f": {order.note}" if order.note else ""
    return Event(
        kind="override", window=None, message=f"{order.actor} {action}, from the next window on{note}"
    )
