"""The metrics of a job, one row each: name, help, labels, and how its samples follow from a job.

Names follow the Prometheus rules: base units, ``_total`` on counters only (the library adds it), ratios 0 to 1,
timestamps in place of ages, two counters in place of a ratio. A value that is unknown has no sample.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gravac import derived
from gravac.protocol import Candidate, Decision, JobSpec, Rule
from gravac_controller.live import PHASES
from gravac_controller.views import LastKnown, RankView, State, Totals, WindowView

Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class JobPicture:
    """All that a scrape needs of one job; ``ranks`` is empty where the job has too many."""

    spec: JobSpec
    decision: Decision
    state: State
    latest: WindowView | None
    totals: Totals
    decided_time: float
    decisions_by_rule: dict[str, int]
    phase_seconds: dict[str, float]
    baseline_step_seconds: float | None
    gradient_diversity: LastKnown | None
    batch_bound_samples: LastKnown | None
    overridden: bool
    ranks: tuple[RankView, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One metric. ``labels`` come after ``job_name``."""

    kind: type[CounterMetricFamily] | type[GaugeMetricFamily]
    name: str
    help: str
    samples: Callable[[JobPicture], Iterator[Sample]]
    labels: tuple[str, ...] = ()


def _one(value: Callable[[JobPicture], float | None]) -> Callable[[JobPicture], Iterator[Sample]]:
    def samples(job: JobPicture) -> Iterator[Sample]:
        number = value(job)
        if number is not None:
            yield (), number

    return samples


def _latest(value: Callable[[WindowView], float | None]) -> Callable[[JobPicture], Iterator[Sample]]:
    return _one(lambda job: None if job.latest is None else value(job.latest))


def _gauge(name: str, text: str, value: Callable[[JobPicture], float | None]) -> Row:
    return Row(GaugeMetricFamily, name, text, _one(value))


def _window_gauge(name: str, text: str, value: Callable[[WindowView], float | None]) -> Row:
    return Row(GaugeMetricFamily, name, text, _latest(value))


def _last_known(name: str, text: str, value: Callable[[JobPicture], LastKnown | None]) -> Row:
    return _gauge(name, text, lambda job: None if (known := value(job)) is None else known.value)


def _total(name: str, text: str, value: Callable[[Totals], float]) -> Row:
    return Row(CounterMetricFamily, name, text, _one(lambda job: value(job.totals)))


def _per_rank(name: str, text: str, value: Callable[[RankView], float | None]) -> Row:
    def samples(job: JobPicture) -> Iterator[Sample]:
        for rank in job.ranks:
            number = value(rank)
            if number is not None:
                yield (str(rank.row.rank),), number

    return Row(GaugeMetricFamily, name, text, samples, ("rank",))


def _per_candidate(name: str, text: str, value: Callable[[Candidate], float | None]) -> Row:
    def samples(job: JobPicture) -> Iterator[Sample]:
        for candidate in {f"{one.cf:g}": one for one in job.decision.candidates}.values():
            number = value(candidate)
            if number is not None:
                yield (f"{candidate.cf:g}",), number

    return Row(GaugeMetricFamily, name, text, samples, ("cf",))


def _job_info(job: JobPicture) -> Iterator[Sample]:
    yield (job.spec.policy.name, job.spec.compressor, job.spec.memory, job.spec.incarnation), 1


def _states(job: JobPicture) -> Iterator[Sample]:
    for state in get_args(State):
        yield (state,), float(job.state == state)


def _agents(job: JobPicture) -> Iterator[Sample]:
    """A rank counts as live while windows arrive; which ranks, only the rank rows could say."""
    live = job.spec.world_size if job.state == "running" else 0
    yield ("live",), live
    yield ("stale",), job.spec.world_size if job.state == "stale" else 0


def _decisions(job: JobPicture) -> Iterator[Sample]:
    for rule in get_args(Rule):
        yield (rule,), job.decisions_by_rule.get(rule, 0)


def _phases(job: JobPicture) -> Iterator[Sample]:
    for phase in PHASES:
        yield (phase,), job.phase_seconds[phase]


TABLE: tuple[Row, ...] = (
    Row(
        GaugeMetricFamily,
        "gravac_job_info",
        "What the job runs; always 1.",
        _job_info,
        ("policy", "compressor", "memory", "incarnation"),
    ),
    Row(GaugeMetricFamily, "gravac_job_state", "1 for the state the job is in.", _states, ("state",)),
    _gauge("gravac_world_size", "Ranks of the job.", lambda job: job.spec.world_size),
    Row(GaugeMetricFamily, "gravac_agents", "Ranks by liveness.", _agents, ("liveness",)),
    _gauge(
        "gravac_compression_factor",
        "Dense elements per element kept, as last sent; before the first window as decided.",
        lambda job: job.latest.report.cf if job.latest is not None else job.decision.cf_candidate,
    ),
    _gauge("gravac_decision_epoch", "Number of the decision in force.", lambda job: job.decision.epoch),
    Row(
        CounterMetricFamily,
        "gravac_decisions",
        "Decisions by the rule that fired, one a window.",
        _decisions,
        ("reason",),
    ),
    _gauge(
        "gravac_override_active", "1 while an operator's order is obeyed.", lambda job: float(job.overridden)
    ),
    _gauge(
        "gravac_last_decision_timestamp_seconds",
        "When the last decision was made, Unix time.",
        lambda job: job.decided_time,
    ),
    _window_gauge(
        "gravac_last_report_timestamp_seconds", "When the last window arrived, Unix time.", lambda w: w.time
    ),
    _total("gravac_windows", "Windows reported.", lambda totals: totals.windows),
    _window_gauge(
        "gravac_gain_ratio", "Share of the gradient's energy that was sent, last window.", lambda w: w.gain
    ),
    _gauge("gravac_gain_threshold_ratio", "Smallest gain a CF must keep.", lambda job: job.decision.epsilon),
    _per_candidate("gravac_candidate_gain_ratio", "Gain of a CF when last measured.", lambda c: c.gain),
    _per_candidate(
        "gravac_candidate_useful_samples_per_second",
        "Samples per second times gain of a CF when last measured.",
        lambda c: c.useful_samples_per_second,
    ),
    _window_gauge(
        "gravac_owed_steps", "Steps of progress held back in the error memories.", lambda w: w.owed_steps
    ),
    _window_gauge(
        "gravac_error_feedback_ratio",
        "Norm of the residual per norm of the gradient.",
        lambda w: w.residual_ratio,
    ),
    _total("gravac_steps", "Training steps reported.", lambda totals: totals.steps),
    _total("gravac_samples", "Training samples reported, all ranks.", lambda totals: totals.samples),
    _window_gauge(
        "gravac_global_batch_samples",
        "Training samples a step, all ranks, last window.",
        lambda w: w.global_batch_samples,
    ),
    _last_known(
        "gravac_batch_bound_samples",
        "Samples a step beyond which larger batches stop paying, when last measured (dense steps).",
        lambda job: job.batch_bound_samples,
    ),
    _last_known(
        "gravac_gradient_diversity_ratio",
        "Sum of the ranks' squared gradient norms per squared norm of their sum, when last measured (dense steps).",
        lambda job: job.gradient_diversity,
    ),
    Row(
        CounterMetricFamily,
        "gravac_phase_seconds",
        "Wall time of steps by phase, mean over ranks.",
        _phases,
        ("phase",),
    ),
    _window_gauge("gravac_step_seconds", "Mean step of the last window.", lambda w: w.step_seconds),
    _window_gauge("gravac_samples_per_second", "Last window, all ranks.", lambda w: w.samples_per_second),
    _gauge(
        "gravac_baseline_step_seconds",
        "Median dense step of the warm-up.",
        lambda job: job.baseline_step_seconds,
    ),
    _total(
        "gravac_gradient_dense_bytes",
        "What dense would have handed to collectives, all ranks.",
        lambda totals: totals.dense_bytes,
    ),
    _total(
        "gravac_gradient_payload_bytes",
        "What was handed to collectives, all ranks, indices included.",
        lambda totals: totals.payload_bytes,
    ),
    _total("gravac_nonfinite_steps", "Steps with a NaN or infinity.", lambda totals: totals.nonfinite_steps),
    _total("gravac_failed_steps", "Steps whose compression failed.", lambda totals: totals.failed_steps),
    _window_gauge(
        "gravac_error_memory_bytes",
        "Held by the error memories of the ranks reported.",
        lambda w: sum(row.memory_bytes for row in w.report.ranks),
    ),
    _window_gauge(
        "gravac_agent_cpu_ratio",
        "CPU time of the agents' exchange threads per second of training, last window: what the agent itself costs.",
        lambda w: derived.agent_cpu_ratio(w.report),
    ),
    _window_gauge(
        "gravac_fallback_active",
        "1 while the ranks are dense because the controller was away or a step failed.",
        lambda w: float(w.report.phase == "fallback"),
    ),
    _per_rank("gravac_rank_step_seconds", "Mean step of a rank, last window.", lambda r: r.step_seconds),
    _per_rank(
        "gravac_rank_relative_speed_ratio",
        "Speed of a rank's own work; fastest = 1.",
        lambda r: r.relative_speed,
    ),
)
