"""The metrics of a job, one row each: name, help, labels, and how its samples follow from a job.

Names follow the Prometheus rules: base units, ``_total`` on counters only (the library adds it), ratios 0 to 1,
timestamps in place of ages, two counters in place of a ratio. What comes once a window is a gauge of the last window
too: a rate over counters that jump once in minutes says little.
"""

from collections.abc import Iterator
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gravac.protocol import OTHER_RULE, RULES, Event, Phase, rule_label
from gravac.signals import risk
from gravac_controller.metrics.rows import (
    JobPicture,
    Row,
    Sample,
    gauge,
    last_known,
    per_candidate,
    total,
    window_gauge,
)
from gravac_controller.metrics.speed import SPEED
from gravac_controller.views.models import LiveState

KINDS: tuple[str, ...] = get_args(Event.model_fields["kind"].annotation)


def _job_info(job: JobPicture) -> Iterator[Sample]:
    yield (job.spec.policy.name, job.spec.compressor, job.spec.memory, job.spec.incarnation), 1


def _states(job: JobPicture) -> Iterator[Sample]:
    for state in get_args(LiveState):
        yield (state,), float(job.state == state)


def _phases(job: JobPicture) -> Iterator[Sample]:
    now = job.decision.phase if job.latest is None else job.latest.report.phase
    for phase in get_args(Phase):
        yield (phase,), float(phase == now)


def _agents(job: JobPicture) -> Iterator[Sample]:
    """A rank counts as live while windows arrive; which ranks, only the rank rows could say."""
    live = job.spec.world_size if job.state == "running" else 0
    yield ("live",), live
    yield ("stale",), job.spec.world_size if job.state == "stale" else 0


def _risk(job: JobPicture) -> Iterator[Sample]:
    if job.latest is not None:
        found = risk.judge(job.latest.report, job.decision.epsilon).level
        for level in get_args(risk.Level):
            yield (level,), float(level == found)


def _decision_info(job: JobPicture) -> Iterator[Sample]:
    yield (rule_label(job.decision.rule),), 1


def _decisions(job: JobPicture) -> Iterator[Sample]:
    for rule in (*RULES, OTHER_RULE):
        yield (rule,), job.decisions_by_rule.get(rule, 0)


def _events(job: JobPicture) -> Iterator[Sample]:
    for kind in KINDS:
        yield (kind,), job.events_by_kind.get(kind, 0)


def _link_rate(job: JobPicture) -> float | None:
    return None if job.spec.link is None else job.spec.link.bits_per_second / 8


TABLE: tuple[Row[JobPicture], ...] = (
    Row(
        GaugeMetricFamily,
        "gravac_job_info",
        "What the job runs; always 1.",
        _job_info,
        ("policy", "compressor", "memory", "incarnation"),
    ),
    Row(GaugeMetricFamily, "gravac_job_state", "1 for the state the job is in.", _states, ("state",)),
    Row(
        GaugeMetricFamily,
        "gravac_job_phase",
        "1 for the phase the ranks were in at the end of the last window.",
        _phases,
        ("phase",),
    ),
    gauge("gravac_world_size", "Ranks of the job.", lambda job: job.spec.world_size),
    Row(GaugeMetricFamily, "gravac_agents", "Ranks by liveness.", _agents, ("liveness",)),
    gauge(
        "gravac_emulated_link_bytes_per_second",
        "Rate of the network that the job pretends to have; no sample where the network is the real one.",
        _link_rate,
    ),
    gauge(
        "gravac_compression_factor",
        "Dense elements per element kept, as last sent; before the first window as decided.",
        lambda job: job.latest.report.cf if job.latest is not None else job.decision.cf_candidate,
    ),
    window_gauge(
        "gravac_wire_compression_factor",
        "Dense bytes per byte handed to collectives, last window.",
        lambda w: w.wire_cf,
    ),
    gauge("gravac_decision_epoch", "Number of the decision in force.", lambda job: job.decision.epoch),
    Row(
        GaugeMetricFamily,
        "gravac_decision_info",
        "The rule that made the last decision; always 1.",
        _decision_info,
        ("reason",),
    ),
    Row(
        CounterMetricFamily,
        "gravac_decisions",
        "Decisions by the rule that fired, one a window.",
        _decisions,
        ("reason",),
    ),
    gauge(
        "gravac_override_active", "1 while an operator's order is obeyed.", lambda job: float(job.overridden)
    ),
    gauge(
        "gravac_last_decision_timestamp_seconds",
        "When the last decision was made, Unix time.",
        lambda job: job.decided_time,
    ),
    window_gauge(
        "gravac_last_report_timestamp_seconds", "When the last window arrived, Unix time.", lambda w: w.time
    ),
    total("gravac_windows", "Windows reported.", lambda totals: totals.windows),
    Row(
        CounterMetricFamily,
        "gravac_missing_windows",
        "Windows that never arrived.",
        lambda job: iter([((), job.missing_windows)]),
    ),
    Row(
        CounterMetricFamily,
        "gravac_events",
        "What happened besides windows: restarts, gaps, fallbacks, faults.",
        _events,
        ("kind",),
    ),
    window_gauge(
        "gravac_gain_ratio", "Share of the gradient's energy that was sent, last window.", lambda w: w.gain
    ),
    gauge("gravac_gain_threshold_ratio", "Smallest gain a CF must keep.", lambda job: job.decision.epsilon),
    per_candidate("gravac_candidate_gain_ratio", "Gain of a CF when last measured.", lambda c: c.gain),
    per_candidate(
        "gravac_candidate_useful_samples_per_second",
        "Samples per second times gain of a CF when last measured.",
        lambda c: c.useful_samples_per_second,
    ),
    window_gauge("gravac_backlog", "Steps of progress held back in the error memories.", lambda w: w.backlog),
    window_gauge(
        "gravac_error_feedback_ratio",
        "Norm of the residual per norm of the gradient.",
        lambda w: w.residual_ratio,
    ),
    Row(
        GaugeMetricFamily,
        "gravac_risk_level",
        "1 for how much the compression of the last window puts learning at risk.",
        _risk,
        ("level",),
    ),
    window_gauge(
        "gravac_loss", "As the trainer reported it, mean of the last window.", lambda w: w.report.loss
    ),
    total("gravac_steps", "Training steps reported.", lambda totals: totals.steps),
    total("gravac_samples", "Training samples reported, all ranks.", lambda totals: totals.samples),
    window_gauge(
        "gravac_global_batch_samples",
        "Training samples a step, all ranks, last window.",
        lambda w: w.global_batch_samples,
    ),
    last_known(
        "gravac_batch_bound_samples",
        "Samples a step beyond which larger batches stop paying, when last measured (dense steps).",
        lambda job: job.batch_bound_samples,
    ),
    last_known(
        "gravac_gradient_diversity_ratio",
        "Sum of the ranks' squared gradient norms per squared norm of their sum, when last measured (dense steps).",
        lambda job: job.gradient_diversity,
    ),
    *SPEED,
)
