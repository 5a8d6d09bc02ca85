"""What Prometheus scrapes, and how it finds it: the text of jobs and controller, and targets for service discovery.

Nothing is registered globally, because the trainer's own metrics live there. No locks are needed: ``job_values`` runs
on the event loop, ``render`` in a thread. The label of a job is ``job_name``, since Prometheus puts its own ``job`` on
every target. Counters of a job are computed from its journal, so they survive a restart of the controller.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import Field

from gravac.protocol import JobSpec, Record
from gravac_controller.live.projection import LiveJob
from gravac_controller.metrics.definitions import JobValues
from gravac_controller.metrics.table import TABLE
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.models import State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SERVICE_PATH = "/metrics/service"
"""Path of the controller's own metrics."""
JOB_PATH = "/v1/jobs/{job}/metrics"
"""Path of one job's metrics."""


def job_values(jobs: Iterable[LiveJob], settings: ControllerSettings) -> tuple[JobValues, ...]:
    """Return the current values of the ``exposed`` jobs, by name. Call it on the event loop."""
    left, values = settings.limits.metrics_max_rank_series, list[JobValues]()
    for job in sorted(exposed(jobs, settings), key=lambda job: job.presence.started_time):
        ranks = job.spec_and_decision()[0].world_size
        show = ranks <= min(settings.limits.metrics_max_ranks, left)
        left -= ranks if show else 0
        values.append(JobValues.of(job, show))
    return tuple(sorted(values, key=lambda job: job.spec.job))


def exposed(jobs: Iterable[LiveJob], settings: ControllerSettings) -> Iterator[LiveJob]:
    """Yield the jobs in /metrics: all but those that have been silent for ``metrics_silent_seconds``."""
    return (job for job in jobs if job.presence.silent_seconds() <= settings.limits.metrics_silent_seconds)


def render(jobs: tuple[JobValues, ...], service: CollectorRegistry | None) -> bytes:
    """Return the text for a scrape. ``service``: the controller's own metrics; None leaves them out."""
    own = b"" if service is None else generate_latest(service)
    return own + (generate_latest(_JobCollector(jobs)) if jobs else b"")


class TargetGroup(Record):
    """One target of Prometheus' HTTP service discovery."""

    targets: tuple[str, ...] = Field(description="host:port, as in the request.")
    labels: dict[str, str] = Field(
        description="`__metrics_path__`, and for a job `job_name` and labels to filter by (`__meta_gravac_…`)."
    )


def service_target(address: str) -> TargetGroup:
    """Return the target of the controller. ``address``: its host:port."""
    return TargetGroup(targets=(address,), labels={"__metrics_path__": SERVICE_PATH})


def job_target(address: str, spec: JobSpec, state: State) -> TargetGroup:
    """Return the target of one job. Prometheus drops labels with two leading underscores after relabeling."""
    labels = {
        "__metrics_path__": JOB_PATH.format(job=spec.job),
        "job_name": spec.job,
        "__meta_gravac_state": state,
        "__meta_gravac_policy": spec.policy.name,
        "__meta_gravac_compressor": spec.compressor,
        "__meta_gravac_world_size": str(spec.world_size),
    }
    return TargetGroup(targets=(address,), labels=labels)


class _JobCollector(Collector):
    """Collects the families of ``TABLE`` for these jobs."""

    def __init__(self, jobs: tuple[JobValues, ...]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        for metric in TABLE:
            make = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
            family = make(metric.name, metric.help, labels=("job_name", *metric.labels))
            for job in self._jobs:
                for labels, value in metric.samples(job):
                    family.add_metric([job.spec.job, *labels], value)
            yield family
