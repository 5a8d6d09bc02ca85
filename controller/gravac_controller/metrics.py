"""/metrics: the jobs as Prometheus families, built at each scrape from an immutable picture.

No global registry (the trainer's own metrics live there) and no locks: ``take`` runs on the event loop, ``render``
in a thread. The label is ``job_name``, since Prometheus puts its own ``job`` on every target. Counters are folds of
the journals, so they survive a restart of the controller (refusals are not journaled and begin anew).
"""

import platform
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gravac import __version__
from gravac_controller.live import LiveJob
from gravac_controller.metric_table import TABLE, JobPicture
from gravac_controller.present import ranks

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REFUSALS = (
    "conflict",
    "control_off",
    "cross_site",
    "ended",
    "foreign_host",
    "invalid",
    "journal",
    "no_epoch",
    "stale_epoch",
    "too_large",
    "too_many_jobs",
    "too_many_streams",
    "too_often",
    "unauthorized",
    "unknown_job",
    "unreadable",
    "wrong_incarnation",
)
"""Reasons of refused requests; each has a series from the start."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What one scrape says."""

    jobs: tuple[JobPicture, ...]
    refused: dict[str, int]
    unreadable_jobs: int
    streams: int


def take(
    jobs: Iterable[LiveJob], *, refused: Counter[str], unreadable_jobs: int, streams: int, max_ranks: int
) -> Picture:
    """The picture of now. ``max_ranks``: larger jobs get no per-rank series. Call it on the event loop."""
    return Picture(tuple(_picture(job, max_ranks) for job in jobs), dict(refused), unreadable_jobs, streams)


def render(picture: Picture) -> bytes:
    """The picture in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Families(picture))
    return generate_latest(registry)


def _picture(job: LiveJob, max_ranks: int) -> JobPicture:
    spec, decision = job.known()
    return JobPicture(
        spec=spec,
        decision=decision,
        state=job.state(),
        latest=job.latest,
        totals=job.totals,
        decided_time=job.decided_time,
        decisions_by_rule=dict(job.decisions_by_rule),
        phase_seconds=dict(job.phase_seconds),
        baseline_step_seconds=job.baseline_step_seconds,
        gradient_diversity=job.gradient_diversity,
        batch_bound_samples=job.batch_bound_samples,
        overridden=job.override is not None,
        ranks=ranks(job).ranks if spec.world_size <= max_ranks else (),
    )


class _Families(Collector):
    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def collect(self) -> Iterator[Metric]:
        picture = self._picture
        build = GaugeMetricFamily("gravac_build_info", "The controller.", labels=["version", "python"])
        build.add_metric([__version__, platform.python_version()], 1)
        yield build
        refused = CounterMetricFamily(
            "gravac_reports_rejected", "Requests refused since the controller started.", labels=["reason"]
        )
        for reason in sorted({*REFUSALS, *picture.refused}):
            refused.add_metric([reason], picture.refused.get(reason, 0))
        yield refused
        yield GaugeMetricFamily("gravac_event_stream_clients", "Open event streams.", picture.streams)
        yield GaugeMetricFamily(
            "gravac_unreadable_jobs", "Jobs whose journal cannot be read.", picture.unreadable_jobs
        )
        for row in TABLE:
            family = row.kind(row.name, row.help, labels=["job_name", *row.labels])
            for job in picture.jobs:
                for values, number in row.samples(job):
                    family.add_metric([job.spec.job, *values], number)
            yield family
