"""The controller's own metrics: counters, gauges and a histogram of the Prometheus client, in a separate registry."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from gravac.version import __version__
from gravac_controller.views.models import LiveState, State

REASONS = (
    "conflict",
    "control_off",
    "cross_site",
    "ended",
    "foreign_host",
    "invalid",
    "job_is_live",
    "journal",
    "no_epoch",
    "stale_epoch",
    "superseded",
    "too_large",
    "too_many_jobs",
    "too_many_streams",
    "too_often",
    "unauthorized",
    "undecidable",
    "unknown_job",
    "unreadable",
    "wrong_incarnation",
)
"""Reasons of refused requests. Each has a series from the start."""
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds of the duration buckets, in seconds."""


@dataclass(frozen=True, slots=True)
class ServiceMetric:
    """Type, name (without ``_total``), help and labels of one metric of the controller."""

    type: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    labels: tuple[str, ...] = ()


BUILD = ServiceMetric("gauge", "gravac_build_info", "The controller; always 1.", ("version", "python"))
JOBS = ServiceMetric(
    "gauge", "gravac_jobs", "Jobs by state; unreadable: the journal cannot be read.", ("state",)
)
REJECTED = ServiceMetric(
    "counter", "gravac_reports_rejected", "Requests refused since the controller started.", ("reason",)
)
DURATION = ServiceMetric(
    "histogram",
    "gravac_http_request_duration_seconds",
    "Time from a request that passed the guard to the start of its answer, by status. For a window: until it and its "
    "decision are on disk.",
    ("route", "method", "code"),
)
SERVICE = (BUILD, JOBS, REJECTED, DURATION)


class ServiceMetrics:
    """The metrics of one controller, counted since it started."""

    def __init__(self) -> None:
        # Without this each counter and histogram has one more series, which nothing reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        _gauge(BUILD, self.registry).labels(__version__, platform.python_version()).set(1)
        self._jobs = _gauge(JOBS, self.registry)
        self._rejected = _counter(REJECTED, self.registry)
        self._durations = Histogram(
            DURATION.name, DURATION.help, DURATION.labels, registry=self.registry, buckets=BUCKETS
        )
        for reason in REASONS:
            self._rejected.labels(reason)

    def count_refused(self, reason: str) -> None:
        """Count a refused request."""
        self._rejected.labels(reason).inc()

    def count_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answer that began ``seconds`` after its request."""
        self._durations.labels(route, method, str(status)).observe(seconds)

    def update(self, jobs: Mapping[State, int], unreadable: int) -> None:
        """Set the gauges before a scrape. ``jobs``: how many by state."""
        for state in get_args(LiveState):
            self._jobs.labels(state).set(jobs.get(state, 0))
        self._jobs.labels("unreadable").set(unreadable)


def _gauge(metric: ServiceMetric, registry: CollectorRegistry) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)


def _counter(metric: ServiceMetric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)
