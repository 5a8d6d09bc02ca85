"""What a metric is, and what a scrape knows of a job. The metrics themselves: ``metric_table``, ``metric_service``.

A value that is unknown has no sample.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gravac.protocol import Candidate, Decision, JobSpec
from gravac.signals import figures
from gravac_controller.live.present import rank_views
from gravac_controller.views.models import LastKnown, RankView, State, Totals, WindowView

Sample = tuple[tuple[str, ...], float]
P = TypeVar("P")
"""What the samples of a row are read from."""


@dataclass(frozen=True)
class JobPicture:
    """All that a scrape needs of one job. ``show_ranks``: it has series per rank."""

    spec: JobSpec
    decision: Decision
    state: State
    latest: WindowView | None
    totals: Totals
    decided_time: float
    decisions_by_rule: dict[str, int]
    events_by_kind: dict[str, int]
    missing_windows: int
    phase_seconds: dict[str, float]
    baseline_step_seconds: float | None
    baseline_exposed_seconds: float | None
    gradient_diversity: LastKnown | None
    batch_bound_samples: LastKnown | None
    overridden: bool
    show_ranks: bool

    @cached_property
    def ranks(self) -> list[RankView]:
        """The ranks of the last window, where each has its own series."""
        return rank_views(self.latest.report.ranks) if self.show_ranks and self.latest is not None else []

    @cached_property
    def own_seconds(self) -> list[float]:
        """Seconds a step that each rank of the last window spent on its own work, in order; may be empty."""
        rows = () if self.latest is None else self.latest.report.ranks
        return sorted(seconds for row in rows if (seconds := figures.own_step_seconds(row)) is not None)

    @property
    def median_own_seconds(self) -> float | None:
        """The middle one of these."""
        return statistics.median(self.own_seconds) if self.own_seconds else None


@dataclass(frozen=True, slots=True)
class Row(Generic[P]):
    """One metric: counter (``_total`` is added) or gauge. ``labels`` of a job's metric come after ``job_name``."""

    kind: type[CounterMetricFamily] | type[GaugeMetricFamily]
    name: str
    help: str
    samples: Callable[[P], Iterator[Sample]]
    labels: tuple[str, ...] = ()


def single(value: Callable[[P], float | None]) -> Callable[[P], Iterator[Sample]]:
    """One sample without labels, or none."""

    def samples(picture: P) -> Iterator[Sample]:
        number = value(picture)
        if number is not None:
            yield (), number

    return samples


def gauge(name: str, text: str, value: Callable[[JobPicture], float | None]) -> Row[JobPicture]:
    """A gauge of a job."""
    return Row(GaugeMetricFamily, name, text, single(value))


def window_gauge(name: str, text: str, value: Callable[[WindowView], float | None]) -> Row[JobPicture]:
    """A gauge of a job's last window."""
    return gauge(name, text, lambda job: None if job.latest is None else value(job.latest))


def last_known(name: str, text: str, value: Callable[[JobPicture], LastKnown | None]) -> Row[JobPicture]:
    """A gauge of a figure that only some windows show."""
    return gauge(name, text, lambda job: None if (known := value(job)) is None else known.value)


def total(name: str, text: str, value: Callable[[Totals], float]) -> Row[JobPicture]:
    """A counter over all windows of a job."""
    return Row(CounterMetricFamily, name, text, single(lambda job: value(job.totals)))


def per_rank(name: str, text: str, value: Callable[[RankView], float | None]) -> Row[JobPicture]:
    """A gauge for each rank of a job that is not too large."""

    def samples(job: JobPicture) -> Iterator[Sample]:
        for rank in job.ranks:
            number = value(rank)
            if number is not None:
                yield (str(rank.row.rank),), number

    return Row(GaugeMetricFamily, name, text, samples, ("rank",))


def per_candidate(name: str, text: str, value: Callable[[Candidate], float | None]) -> Row[JobPicture]:
    """A gauge for each CF on a job's ladder."""

    def samples(job: JobPicture) -> Iterator[Sample]:
        for candidate in {f"{one.cf:g}": one for one in job.decision.candidates}.values():
            number = value(candidate)
            if number is not None:
                yield (f"{candidate.cf:g}",), number

    return Row(GaugeMetricFamily, name, text, samples, ("cf",))
