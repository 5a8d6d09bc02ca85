"""The metrics of a job: name, help, labels, and how to compute the samples.

Names follow the Prometheus rules: base units, ``_total`` on counters only (the library adds it), ratios from 0 to 1,
timestamps instead of ages, two counters instead of a ratio. Figures that change once a window also have a gauge of the
last window, because a rate over counters that jump once in minutes says little.
"""

from collections.abc import Iterator
from typing import get_args

from gravac.findings import Severity
from gravac.protocol import RULES, Event, Phase
from gravac.signals import figures
from gravac_controller.metrics.definitions import (
    JobMetric,
    JobValues,
    Sample,
    gauge,
    per_candidate,
    per_rank,
    total,
    window_gauge,
)
from gravac_controller.views.models import PHASES, LiveState

KINDS: tuple[str, ...] = get_args(Event.model_fields["kind"].annotation)


def _job_info(job: JobValues) -> Iterator[Sample]:
    spec = job.spec
    yield (spec.policy.name, spec.compressor, spec.memory, str(spec.world_size), spec.incarnation), 1


def _states(job: JobValues) -> Iterator[Sample]:
    for state in get_args(LiveState):
        yield (state,), float(job.state == state)


def _phases(job: JobValues) -> Iterator[Sample]:
    now = job.decision.phase if job.latest is None else job.latest.report.phase
    for phase in get_args(Phase):
        yield (phase,), float(phase == now)


def _risk(job: JobValues) -> Iterator[Sample]:
    if job.risk is not None:
        for level in get_args(Severity):
            yield (level,), float(level == job.risk)


def _decision_info(job: JobValues) -> Iterator[Sample]:
    decision = job.decision
    # A policy of a plugin may name any number of rules.
    rule = decision.rule if decision.rule in RULES else "other"
    yield (rule, decision.codec or job.spec.compressor), 1


def _efficiency(job: JobValues) -> Iterator[Sample]:
    if job.latest is not None:
        view = job.latest
        for name, value in (
            ("low", view.efficiency_low),
            ("likely", view.efficiency),
            ("high", view.efficiency_high),
        ):
            if value is not None:
                yield (name,), value


def _events(job: JobValues) -> Iterator[Sample]:
    for kind in KINDS:
        yield (kind,), job.events_by_kind.get(kind, 0)


def _faulty_steps(job: JobValues) -> Iterator[Sample]:
    yield ("nonfinite",), job.totals.nonfinite_steps
    yield ("failed",), job.totals.failed_steps


def _network_seconds(job: JobValues) -> Iterator[Sample]:
    if job.spec.hosts is not None:
        inside = job.totals.inside_seconds
        yield ("inside",), inside
        yield ("between",), max(0.0, job.totals.exposed_seconds - inside)


def _network_bytes(job: JobValues) -> Iterator[Sample]:
    if job.spec.hosts is not None:
        yield ("inside",), job.totals.inside_bytes
        yield ("between",), job.totals.payload_bytes


def _step_phase_seconds(job: JobValues) -> Iterator[Sample]:
    if job.latest is not None:
        report = job.latest.report
        for phase in PHASES:
            yield (phase,), getattr(report.phases, phase) / figures.steps(report)


def _own_work(job: JobValues) -> Iterator[Sample]:
    median = job.median_own_seconds
    if median is not None:
        yield ("minimum",), job.own_seconds[0]
        yield ("median",), median
        yield ("maximum",), job.own_seconds[-1]


TABLE: tuple[JobMetric, ...] = (
    JobMetric(
        "gauge",
        "gravac_job_info",
        "Policy, compressor, memory and ranks of the job; always 1.",
        _job_info,
        ("policy", "compressor", "memory", "world_size", "incarnation"),
    ),
    JobMetric("gauge", "gravac_job_state", "1 for the state the job is in.", _states, ("state",)),
    JobMetric(
        "gauge",
        "gravac_job_phase",
        "1 for the phase the ranks were in at the end of the last window.",
        _phases,
        ("phase",),
    ),
    gauge(
        "gravac_compression_factor",
        "Dense elements per element sent, in the last window; as decided before the first.",
        lambda job: job.latest.report.cf if job.latest is not None else job.decision.cf_candidate,
    ),
    window_gauge(
        "gravac_wire_compression_factor",
        "Dense bytes per byte handed to collectives, last window.",
        lambda w: w.wire_cf,
    ),
    gauge("gravac_decision_epoch", "Number of the decision in force.", lambda job: job.decision.epoch),
    JobMetric(
        "gauge",
        "gravac_decision_info",
        "The rule that made the last decision, and the codec that it chose; always 1.",
        _decision_info,
        ("reason", "codec"),
    ),
    JobMetric(
        "counter",
        "gravac_events",
        "Events other than windows: restarts, gaps, fallbacks, faults.",
        _events,
        ("kind",),
    ),
    window_gauge(
        "gravac_gain_ratio",
        "Energy that was sent / energy of gradient + residual, last window; above 1 where a codec rounds at random.",
        lambda w: w.gain,
    ),
    gauge(
        "gravac_gain_threshold_ratio", "Smallest gain that a CF must reach.", lambda job: job.decision.epsilon
    ),
    per_candidate(
        "gravac_candidate_useful_samples_per_second",
        "What the policy maximizes, for a plan at its last measurement: samples per second times gain for policy "
        "gravac, times statistical efficiency for policy auto.",
        lambda c: c.useful_samples_per_second,
    ),
    JobMetric(
        "gauge",
        "gravac_statistical_efficiency_ratio",
        "Steps that dense training needs divided by the steps that this training needs, last window: the likely value, "
        "and the lowest and highest credible ones.",
        _efficiency,
        ("estimate",),
    ),
    window_gauge("gravac_backlog", "Steps of progress that wait in the error memories.", lambda w: w.backlog),
    JobMetric(
        "gauge",
        "gravac_risk_level",
        "1 for the risk that the compression of the last window poses to learning.",
        _risk,
        ("level",),
    ),
    window_gauge(
        "gravac_loss", "As the trainer reported it, mean of the last window.", lambda w: w.report.loss
    ),
    total("gravac_steps", "Training steps reported.", lambda totals: totals.steps),
    total(
        "gravac_training_seconds",
        "Wall time of the steps reported, without pauses in which the trainer evaluates or saves.",
        lambda totals: totals.seconds - totals.paused_seconds,
    ),
    window_gauge(
        "gravac_step_seconds",
        "Step of the last window: the median of settled steps, without pauses in which the trainer evaluates or saves.",
        lambda w: w.usual_step_seconds,
    ),
    JobMetric(
        "gauge",
        "gravac_step_phase_seconds",
        "Mean step of the last window by phase, mean over ranks.",
        _step_phase_seconds,
        ("phase",),
    ),
    window_gauge("gravac_samples_per_second", "Last window, all ranks.", lambda w: w.samples_per_second),
    window_gauge(
        "gravac_useful_samples_per_second",
        "Useful throughput, last window: samples per second times statistical efficiency.",
        lambda w: w.useful_samples_per_second,
    ),
    gauge(
        "gravac_baseline_step_seconds",
        "A dense step on today's network: measured, else predicted.",
        lambda job: job.baseline_step_seconds,
    ),
    gauge(
        "gravac_baseline_exposed_seconds",
        "Time that a dense step waits for the network, median of the warm-up: the most that compression can save.",
        lambda job: job.baseline_exposed_seconds,
    ),
    total(
        "gravac_gradient_dense_bytes",
        "Bytes that dense training would have sent, all ranks.",
        lambda totals: totals.dense_bytes,
    ),
    total(
        "gravac_gradient_payload_bytes",
        "Bytes handed to collectives, all ranks, indices included.",
        lambda totals: totals.payload_bytes,
    ),
    JobMetric(
        "counter",
        "gravac_network_bytes",
        "Bytes of gradients by level of links, all ranks: sent inside hosts, and handed to collectives between them.",
        _network_bytes,
        ("level",),
    ),
    JobMetric(
        "counter",
        "gravac_network_seconds",
        "Waits for the network by level of links, mean over ranks: inside hosts and between them.",
        _network_seconds,
        ("level",),
    ),
    JobMetric(
        "counter",
        "gravac_faulty_steps",
        "Steps with a fault: a gradient that is not finite, or compression that failed.",
        _faulty_steps,
        ("reason",),
    ),
    window_gauge(
        "gravac_agent_cpu_ratio",
        "CPU time of the agents' exchange threads per second of training, last window: the overhead of the agent.",
        lambda w: figures.agent_cpu_ratio(w.report),
    ),
    JobMetric(
        "gauge",
        "gravac_own_work_seconds",
        "Time of a step that a rank spends on its own work (all but waiting for the network), over ranks, last window.",
        _own_work,
        ("stat",),
    ),
    per_rank(
        "gravac_rank_relative_speed_ratio",
        "Speed of a rank's own work; fastest = 1.",
        lambda r: r.relative_speed,
    ),
)
