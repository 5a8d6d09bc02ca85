"""What a metric of a job is, and the values of a job that it reads. The metrics themselves are in ``table``.

An unknown value has no sample.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gravac.findings import Severity
from gravac.protocol import Candidate, Decision, JobSpec
from gravac.signals import figures
from gravac_controller.live.job_views import rank_views
from gravac_controller.live.projection import LiveJob
from gravac_controller.views.models import RankView, State, Totals, WindowView

Sample = tuple[tuple[str, ...], float]
"""Values of the labels, and the value of the sample."""


@dataclass(frozen=True)
class JobValues:
    """The values of one job in a scrape, immutable. ``show_ranks``: it has series per rank."""

    spec: JobSpec
    decision: Decision
    state: State
    latest: WindowView | None
    totals: Totals
    events_by_kind: dict[str, int]
    baseline_step_seconds: float | None
    baseline_exposed_seconds: float | None
    risk: Severity | None
    show_ranks: bool

    @classmethod
    def of(cls, job: LiveJob, show_ranks: bool) -> "JobValues":
        """Return the current values. Call it on the event loop."""
        spec, decision = job.spec_and_decision()
        return cls(
            spec=spec,
            decision=decision,
            state=job.state(),
            latest=job.latest,
            totals=job.counts.totals,
            events_by_kind=dict(job.counts.events_by_kind),
            baseline_step_seconds=job.baseline_step_seconds or job.predicted_dense_step_seconds,
            baseline_exposed_seconds=job.dense.exposed_seconds,
            risk=None if (risk := job.learning.light.risk) is None else risk.level,
            show_ranks=show_ranks,
        )

    @cached_property
    def ranks(self) -> list[RankView]:
        """The ranks of the last window; empty where they have no series."""
        return rank_views(self.latest.report.ranks) if self.show_ranks and self.latest is not None else []

    @cached_property
    def own_seconds(self) -> list[float]:
        """Seconds of own work in a step of each rank of the last window, ascending; may be empty."""
        rows = () if self.latest is None else self.latest.report.ranks
        return sorted(seconds for row in rows if (seconds := figures.own_step_seconds(row)) is not None)

    @property
    def median_own_seconds(self) -> float | None:
        """The median of ``own_seconds``; None where that is empty."""
        return statistics.median(self.own_seconds) if self.own_seconds else None


@dataclass(frozen=True, slots=True)
class JobMetric:
    """Definition of one metric. ``name`` is without ``_total``; ``labels`` come after ``job_name``."""

    type: Literal["counter", "gauge"]
    name: str
    help: str
    samples: Callable[[JobValues], Iterator[Sample]]
    labels: tuple[str, ...] = ()


def single(value: Callable[[JobValues], float | None]) -> Callable[[JobValues], Iterator[Sample]]:
    """One sample without labels, or none where the value is None."""

    def samples(job: JobValues) -> Iterator[Sample]:
        number = value(job)
        if number is not None:
            yield (), number

    return samples


def gauge(name: str, text: str, value: Callable[[JobValues], float | None]) -> JobMetric:
    """A gauge of a job."""
    return JobMetric("gauge", name, text, single(value))


def window_gauge(name: str, text: str, value: Callable[[WindowView], float | None]) -> JobMetric:
    """A gauge of a job's last window."""
    return gauge(name, text, lambda job: None if job.latest is None else value(job.latest))


def total(name: str, text: str, value: Callable[[Totals], float]) -> JobMetric:
    """A counter over all windows of a job."""
    return JobMetric("counter", name, text, single(lambda job: value(job.totals)))


def per_rank(name: str, text: str, value: Callable[[RankView], float | None]) -> JobMetric:
    """A gauge for each rank of a job with series per rank."""

    def samples(job: JobValues) -> Iterator[Sample]:
        for rank in job.ranks:
            number = value(rank)
            if number is not None:
                yield (str(rank.row.rank),), number

    return JobMetric("gauge", name, text, samples, ("rank",))


def per_candidate(name: str, text: str, value: Callable[[Candidate], float | None]) -> JobMetric:
    """A gauge for each plan that a job may choose. Dense has the job's compressor as its codec."""

    def samples(job: JobValues) -> Iterator[Sample]:
        rows = {
            (candidate.codec or job.spec.compressor, f"{candidate.cf:g}"): candidate
            for candidate in job.decision.candidates
        }
        for plan, candidate in rows.items():
            number = value(candidate)
            if number is not None:
                yield plan, number

    return JobMetric("gauge", name, text, samples, ("codec", "cf"))
