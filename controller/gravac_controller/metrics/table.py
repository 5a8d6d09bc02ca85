"""The metrics of a job: name, help, labels, and how to compute the samples.

Names follow the Prometheus rules: base units, ``_total`` on counters only (the library adds it), ratios from 0 to 1,
timestamps instead of ages, two counters instead of a ratio. Figures that change once a window also have a gauge of the
last window, because a rate over counters that jump once in minutes says little.
"""

from collections.abc import Iterator
from typing import get_args

from gravac.protocol import OTHER_RULE, RULES, Event, Phase, rule_label
from gravac.signals import figures, risk
from gravac_controller.live.counts import PHASES
from gravac_controller.metrics.definitions import (
    JobMetric,
    JobValues,
    Sample,
    gauge,
    last_known,
    per_candidate,
    per_rank,
    total,
    window_gauge,
)
from gravac_controller.views.models import LiveState

KINDS: tuple[str, ...] = get_args(Event.model_fields["kind"].annotation)


def _job_info(job: JobValues) -> Iterator[Sample]:
    yield (job.spec.policy.name, job.spec.compressor, job.spec.memory, job.spec.incarnation), 1


def _states(job: JobValues) -> Iterator[Sample]:
    for state in get_args(LiveState):
        yield (state,), float(job.state == state)


def _phases(job: JobValues) -> Iterator[Sample]:
    now = job.decision.phase if job.latest is None else job.latest.report.phase
    for phase in get_args(Phase):
        yield (phase,), float(phase == now)


def _agents(job: JobValues) -> Iterator[Sample]:
    """All ranks count as live while windows arrive; only the rank rows could show which ones report."""
    live = job.spec.world_size if job.state == "running" else 0
    yield ("live",), live
    yield ("stale",), job.spec.world_size if job.state == "stale" else 0


def _risk(job: JobValues) -> Iterator[Sample]:
    if job.risk is not None:
        for level in get_args(risk.Level):
            yield (level,), float(level == job.risk)


def _plan_info(job: JobValues) -> Iterator[Sample]:
    decision, latest = job.decision, job.latest
    codec = decision.codec or job.spec.compressor if latest is None else latest.codec
    yield (codec,), 1


def _decision_info(job: JobValues) -> Iterator[Sample]:
    yield (rule_label(job.decision.rule),), 1


def _decisions(job: JobValues) -> Iterator[Sample]:
    for rule in (*RULES, OTHER_RULE):
        yield (rule,), job.decisions_by_rule.get(rule, 0)


def _events(job: JobValues) -> Iterator[Sample]:
    for kind in KINDS:
        yield (kind,), job.events_by_kind.get(kind, 0)


def _link_rate(job: JobValues) -> float | None:
    return None if job.spec.link is None else job.spec.link.bits_per_second / 8


def _phase_seconds(job: JobValues) -> Iterator[Sample]:
    for phase in PHASES:
        yield (phase,), job.phase_seconds[phase]


def _step_phase_seconds(job: JobValues) -> Iterator[Sample]:
    if job.latest is not None:
        report = job.latest.report
        for phase in PHASES:
            yield (phase,), getattr(report.phases, phase) / figures.steps(report)


def _network_seconds(job: JobValues) -> Iterator[Sample]:
    if job.spec.hosts is not None:
        inside = job.totals.inside_seconds
        yield ("inside",), inside
        yield ("between",), max(0.0, job.phase_seconds["communicate"] - inside)


def _network_bytes(job: JobValues) -> Iterator[Sample]:
    if job.spec.hosts is not None:
        yield ("inside",), job.totals.inside_bytes
        yield ("between",), job.totals.payload_bytes


def _own_work(job: JobValues) -> Iterator[Sample]:
    median = job.median_own_seconds
    if median is not None:
        yield ("minimum",), job.own_seconds[0]
        yield ("median",), median
        yield ("maximum",), job.own_seconds[-1]


def _straggling(job: JobValues) -> float | None:
    median = job.median_own_seconds
    return None if median is None else figures.ratio(job.own_seconds[-1], median)


TABLE: tuple[JobMetric, ...] = (
    JobMetric(
        "gauge",
        "gravac_job_info",
        "Policy, compressor and memory of the job; always 1.",
        _job_info,
        ("policy", "compressor", "memory", "incarnation"),
    ),
    JobMetric("gauge", "gravac_job_state", "1 for the state the job is in.", _states, ("state",)),
    JobMetric(
        "gauge",
        "gravac_job_phase",
        "1 for the phase the ranks were in at the end of the last window.",
        _phases,
        ("phase",),
    ),
    gauge("gravac_world_size", "Ranks of the job.", lambda job: job.spec.world_size),
    JobMetric("gauge", "gravac_agents", "Ranks by liveness.", _agents, ("liveness",)),
    gauge(
        "gravac_emulated_link_bytes_per_second",
        "Rate of the network that the job emulates; no sample on the real network.",
        _link_rate,
    ),
    gauge(
        "gravac_compression_factor",
        "Dense elements per element sent, in the last window; as decided before the first.",
        lambda job: job.latest.report.cf if job.latest is not None else job.decision.cf_candidate,
    ),
    JobMetric(
        "gauge",
        "gravac_codec_info",
        "Codec of the last step, which counts unless its compression factor is 1; always 1.",
        _plan_info,
        ("codec",),
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
        "The rule that made the last decision; always 1.",
        _decision_info,
        ("reason",),
    ),
    JobMetric(
        "counter",
        "gravac_decisions",
        "Decisions by the rule that fired, one a window.",
        _decisions,
        ("reason",),
    ),
    gauge(
        "gravac_override_active",
        "1 while an operator's order is in force.",
        lambda job: float(job.overridden),
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
    JobMetric(
        "counter",
        "gravac_missing_windows",
        "Windows that never arrived.",
        lambda job: iter([((), job.missing_windows)]),
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
    per_candidate("gravac_candidate_gain_ratio", "Gain of a plan at its last measurement.", lambda c: c.gain),
    per_candidate(
        "gravac_candidate_useful_samples_per_second",
        "What the policy maximizes, for a plan at its last measurement: samples per second times gain for policy "
        "gravac, times statistical efficiency for policy auto.",
        lambda c: c.useful_samples_per_second,
    ),
    per_candidate(
        "gravac_candidate_statistical_efficiency_ratio",
        "Statistical efficiency that the policy predicts for a plan.",
        lambda c: c.efficiency,
    ),
    window_gauge(
        "gravac_statistical_efficiency_ratio",
        "Steps that dense training needs divided by the steps that this training needs, estimated, last window.",
        lambda w: w.efficiency,
    ),
    window_gauge(
        "gravac_statistical_efficiency_low_ratio",
        "The lowest credible statistical efficiency, last window.",
        lambda w: w.efficiency_low,
    ),
    window_gauge(
        "gravac_statistical_efficiency_high_ratio",
        "The highest credible statistical efficiency, last window.",
        lambda w: w.efficiency_high,
    ),
    window_gauge("gravac_backlog", "Steps of progress that wait in the error memories.", lambda w: w.backlog),
    window_gauge(
        "gravac_error_feedback_ratio",
        "Norm of the residual divided by the norm of the gradient.",
        lambda w: w.residual_ratio,
    ),
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
    total("gravac_samples", "Training samples reported, all ranks.", lambda totals: totals.samples),
    window_gauge(
        "gravac_global_batch_samples",
        "Training samples a step, all ranks, last window.",
        lambda w: w.global_batch_samples,
    ),
    last_known(
        "gravac_batch_bound_samples",
        "Samples a step beyond which larger batches stop paying, at the last measurement (dense steps).",
        lambda job: job.batch_bound_samples,
    ),
    last_known(
        "gravac_gradient_diversity_ratio",
        "Sum of the ranks' squared gradient norms divided by the squared norm of their sum, at the last measurement "
        "(dense steps).",
        lambda job: job.gradient_diversity,
    ),
    total("gravac_training_seconds", "Wall time of the steps reported.", lambda totals: totals.seconds),
    JobMetric(
        "counter",
        "gravac_phase_seconds",
        "Wall time of steps by phase, mean over ranks.",
        _phase_seconds,
        ("phase",),
    ),
    window_gauge("gravac_step_seconds", "Mean step of the last window.", lambda w: w.step_seconds),
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
    window_gauge(
        "gravac_compression_throughput_samples_per_second",
        "GraVAC's T_comp, last window: samples per second times gain.",
        lambda w: w.compression_throughput,
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
    total("gravac_nonfinite_steps", "Steps with a NaN or infinity.", lambda totals: totals.nonfinite_steps),
    total("gravac_failed_steps", "Steps whose compression failed.", lambda totals: totals.failed_steps),
    window_gauge(
        "gravac_error_memory_bytes",
        "Size of the error memories of the reported ranks.",
        lambda w: sum(row.memory_bytes for row in w.report.ranks),
    ),
    window_gauge(
        "gravac_agent_cpu_ratio",
        "CPU time of the agents' exchange threads per second of training, last window: the overhead of the agent.",
        lambda w: figures.agent_cpu_ratio(w.report),
    ),
    window_gauge(
        "gravac_fallback_active",
        "1 while the ranks are dense because the controller did not answer or a step failed.",
        lambda w: float(w.report.phase == "fallback"),
    ),
    JobMetric(
        "gauge",
        "gravac_own_work_seconds",
        "Time of a step that a rank spends on its own work (all but waiting for the network), over ranks, last window.",
        _own_work,
        ("stat",),
    ),
    gauge(
        "gravac_straggler_ratio",
        "Own work of the slowest rank divided by that of the median rank, last window.",
        _straggling,
    ),
    per_rank("gravac_rank_step_seconds", "Mean step of a rank, last window.", lambda r: r.step_seconds),
    per_rank(
        "gravac_rank_relative_speed_ratio",
        "Speed of a rank's own work; fastest = 1.",
        lambda r: r.relative_speed,
    ),
)
