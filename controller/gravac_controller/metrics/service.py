"""The metrics of the controller itself, in the manner of ``metric_table``."""

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from gravac import __version__
from gravac_controller.metrics.rows import Row, Sample, single
from gravac_controller.metrics.traffic import BOUNDS, TrafficPicture
from gravac_controller.views.models import LiveState, State

REFUSALS = (
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
"""Reasons of refused requests; each has a series from the start."""


@dataclass(frozen=True, slots=True)
class ServicePicture:
    """What a scrape says of the controller. ``jobs``: how many by state, those left out of /metrics included."""

    refused: dict[str, int]
    traffic: TrafficPicture
    jobs: dict[State, int]
    unreadable_jobs: int
    streams: int


def _build(picture: ServicePicture) -> Iterator[Sample]:
    yield (__version__, platform.python_version()), 1


def _jobs(picture: ServicePicture) -> Iterator[Sample]:
    for state in get_args(LiveState):
        yield (state,), picture.jobs.get(state, 0)


def _refused(picture: ServicePicture) -> Iterator[Sample]:
    for reason in sorted({*REFUSALS, *picture.refused}):
        yield (reason,), picture.refused.get(reason, 0)


def _requests(picture: ServicePicture) -> Iterator[Sample]:
    yield from sorted(picture.traffic.requests.items())


SERVICE: tuple[Row[ServicePicture], ...] = (
    Row(GaugeMetricFamily, "gravac_build_info", "The controller; always 1.", _build, ("version", "python")),
    Row(GaugeMetricFamily, "gravac_jobs", "Jobs held, by state.", _jobs, ("state",)),
    Row(
        GaugeMetricFamily,
        "gravac_unreadable_jobs",
        "Jobs whose journal cannot be read.",
        single(lambda picture: picture.unreadable_jobs),
    ),
    Row(
        GaugeMetricFamily,
        "gravac_event_stream_clients",
        "Open event streams.",
        single(lambda picture: picture.streams),
    ),
    Row(
        CounterMetricFamily,
        "gravac_reports_rejected",
        "Requests refused since the controller started.",
        _refused,
        ("reason",),
    ),
    Row(
        CounterMetricFamily,
        "gravac_http_requests",
        "Requests that were let in, by what they were answered with, since the controller started.",
        _requests,
        ("route", "method", "code"),
    ),
)
DURATIONS = (
    "gravac_http_request_duration_seconds",
    "From a request to the beginning of its answer. For a window: until it and its decision are on disk.",
    ("route", "method"),
)
"""Name, help and labels of the one histogram."""


def durations(picture: ServicePicture) -> HistogramMetricFamily:
    """That histogram."""
    name, text, labels = DURATIONS
    family = HistogramMetricFamily(name, text, labels=labels)
    bounds = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
    for key, found in sorted(picture.traffic.durations.items()):
        family.add_metric(key, list(zip(bounds, found.counts, strict=True)), found.seconds)
    return family
