"""/metrics: the jobs as Prometheus families, built at each scrape from an immutable picture.

No global registry (the trainer's own metrics live there) and no locks: ``take`` runs on the event loop, ``render``
in a thread. The label is ``job_name``, since Prometheus puts its own ``job`` on every target. A job's counters are
folds of its journal, so they survive a restart of the controller; the controller's own begin anew.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gravac_controller.api.services import Services
from gravac_controller.live.projection import LiveJob
from gravac_controller.metrics.rows import JobPicture, P, Row
from gravac_controller.metrics.service import SERVICE, ServicePicture, durations
from gravac_controller.metrics.table import TABLE
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.models import State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Picture:
    """What one scrape says; ``service`` is null where it is about jobs alone."""

    jobs: tuple[JobPicture, ...]
    service: ServicePicture | None


def take(jobs: Iterable[LiveJob], settings: ControllerSettings) -> tuple[JobPicture, ...]:
    """The jobs as they are now, without those that left (``shown``). Call it on the event loop."""
    left, pictures = settings.metrics_max_rank_series, list[JobPicture]()
    for job in sorted(shown(jobs, settings), key=lambda one: one.started_time):
        ranks = job.known()[0].world_size
        show = ranks <= min(settings.metrics_max_ranks, left)
        left -= ranks if show else 0
        pictures.append(picture(job, show))
    return tuple(sorted(pictures, key=lambda one: one.spec.job))


def take_service(services: Services) -> ServicePicture:
    """The controller as it is now. Call it on the event loop."""
    states: Counter[State] = Counter(job.live.state() for job in services.store.jobs.values())
    return ServicePicture(
        refused=dict(services.refused),
        traffic=services.traffic.picture(),
        jobs=dict(states),
        unreadable_jobs=len(services.store.unreadable),
        streams=services.streams.open,
    )


def shown(jobs: Iterable[LiveJob], settings: ControllerSettings) -> Iterator[LiveJob]:
    """Those that have not been silent for so long that they left the metrics."""
    return (job for job in jobs if job.silent_seconds() <= settings.metrics_silent_seconds)


def render(picture: Picture) -> bytes:
    """The picture in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Families(picture))
    if picture.service is not None:
        ProcessCollector(registry=registry)
    return generate_latest(registry)


def picture(job: LiveJob, show_ranks: bool) -> JobPicture:
    """The job as it is now. Call it on the event loop, where one runs."""
    spec, decision = job.known()
    return JobPicture(
        spec=spec,
        decision=decision,
        state=job.state(),
        latest=job.latest,
        totals=job.totals,
        decided_time=job.decided_time,
        decisions_by_rule=dict(job.decisions_by_rule),
        events_by_kind=dict(job.events_by_kind),
        missing_windows=job.missing_windows,
        phase_seconds=dict(job.phase_seconds),
        baseline_step_seconds=job.baseline_step_seconds,
        baseline_exposed_seconds=job.baseline_exposed_seconds,
        gradient_diversity=job.gradient_diversity,
        batch_bound_samples=job.batch_bound_samples,
        show_ranks=show_ranks,
        overridden=job.override is not None,
    )


class _Families(Collector):
    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def collect(self) -> Iterator[Metric]:
        jobs, service = self._picture.jobs, self._picture.service
        if service is not None:
            for own in SERVICE:
                yield _family(own, own.labels, [((), service)])
            yield durations(service)
        named = [((job.spec.job,), job) for job in jobs]
        for row in TABLE if jobs else ():
            yield _family(row, ("job_name", *row.labels), named)


def _family(row: Row[P], labels: tuple[str, ...], pictures: Iterable[tuple[tuple[str, ...], P]]) -> Metric:
    """One metric of all ``pictures``, each with its first label values."""
    family = row.kind(row.name, row.help, labels=labels)
    for first, picture in pictures:
        for values, number in row.samples(picture):
            family.add_metric([*first, *values], number)
    return family
