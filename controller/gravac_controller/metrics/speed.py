"""Time, bytes and ranks of a job: the second half of ``metric_table``."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gravac.signals import figures
from gravac_controller.live.projection import PHASES
from gravac_controller.metrics.rows import JobPicture, Row, Sample, gauge, per_rank, total, window_gauge


def _phase_seconds(job: JobPicture) -> Iterator[Sample]:
    for phase in PHASES:
        yield (phase,), job.phase_seconds[phase]


def _step_phase_seconds(job: JobPicture) -> Iterator[Sample]:
    if job.latest is not None:
        report = job.latest.report
        for phase in PHASES:
            yield (phase,), getattr(report.phases, phase) / figures.steps(report)


def _own_work(job: JobPicture) -> Iterator[Sample]:
    median = job.median_own_seconds
    if median is not None:
        yield ("minimum",), job.own_seconds[0]
        yield ("median",), median
        yield ("maximum",), job.own_seconds[-1]


def _straggling(job: JobPicture) -> float | None:
    median = job.median_own_seconds
    return None if median is None else figures.ratio(job.own_seconds[-1], median)


SPEED: tuple[Row[JobPicture], ...] = (
    total("gravac_training_seconds", "Wall time of the steps reported.", lambda totals: totals.seconds),
    Row(
        CounterMetricFamily,
        "gravac_phase_seconds",
        "Wall time of steps by phase, mean over ranks.",
        _phase_seconds,
        ("phase",),
    ),
    window_gauge("gravac_step_seconds", "Mean step of the last window.", lambda w: w.step_seconds),
    Row(
        GaugeMetricFamily,
        "gravac_step_phase_seconds",
        "Mean step of the last window by phase, mean over ranks.",
        _step_phase_seconds,
        ("phase",),
    ),
    window_gauge("gravac_samples_per_second", "Last window, all ranks.", lambda w: w.samples_per_second),
    window_gauge(
        "gravac_useful_samples_per_second",
        "Samples per second times gain, last window.",
        lambda w: w.useful_samples_per_second,
    ),
    gauge(
        "gravac_baseline_step_seconds",
        "Median dense step of the warm-up.",
        lambda job: job.baseline_step_seconds,
    ),
    gauge(
        "gravac_baseline_exposed_seconds",
        "Part of the dense step that waited for the network, median of the warm-up: the most there is to save.",
        lambda job: job.baseline_exposed_seconds,
    ),
    total(
        "gravac_gradient_dense_bytes",
        "What dense would have handed to collectives, all ranks.",
        lambda totals: totals.dense_bytes,
    ),
    total(
        "gravac_gradient_payload_bytes",
        "What was handed to collectives, all ranks, indices included.",
        lambda totals: totals.payload_bytes,
    ),
    total("gravac_nonfinite_steps", "Steps with a NaN or infinity.", lambda totals: totals.nonfinite_steps),
    total("gravac_failed_steps", "Steps whose compression failed.", lambda totals: totals.failed_steps),
    window_gauge(
        "gravac_error_memory_bytes",
        "Held by the error memories of the ranks reported.",
        lambda w: sum(row.memory_bytes for row in w.report.ranks),
    ),
    window_gauge(
        "gravac_agent_cpu_ratio",
        "CPU time of the agents' exchange threads per second of training, last window: what the agent itself costs.",
        lambda w: figures.agent_cpu_ratio(w.report),
    ),
    window_gauge(
        "gravac_fallback_active",
        "1 while the ranks are dense because the controller was away or a step failed.",
        lambda w: float(w.report.phase == "fallback"),
    ),
    Row(
        GaugeMetricFamily,
        "gravac_own_work_seconds",
        "What a rank spends of a step on its own work (all but waiting for the network), over ranks, last window.",
        _own_work,
        ("stat",),
    ),
    gauge(
        "gravac_straggler_ratio",
        "Own work of the slowest rank per that of the median one, last window.",
        _straggling,
    ),
    per_rank("gravac_rank_step_seconds", "Mean step of a rank, last window.", lambda r: r.step_seconds),
    per_rank(
        "gravac_rank_relative_speed_ratio",
        "Speed of a rank's own work; fastest = 1.",
        lambda r: r.relative_speed,
    ),
)
