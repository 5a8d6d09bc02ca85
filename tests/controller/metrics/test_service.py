"""Metrics of the service itself: requests, and how long they take."""

import pytest

from gravac_controller.metrics.service import ServiceMetrics
from tests.controller.metrics.test_table import scrape
from tests.support.in_process import InProcess, register, run
from tools.harness.builders import Trainer


def test_requests_are_counted_by_template_and_known_words(app: InProcess) -> None:
    run(app, Trainer(), register(app).decision, 2)
    app.client.get("/v1/jobs/none")
    app.client.get("/no-such-path")
    app.client.get("/static/no-such-file")
    app.client.request("BREW", "/v1/jobs")
    app.client.head("/healthz")
    counts = scrape(app)["gravac_http_request_duration_seconds_count"]
    assert counts == {
        ("200", "POST", "/v1/jobs"): 1,
        ("200", "POST", "/v1/jobs/{job}/windows"): 2,
        ("404", "GET", "/v1/jobs/{job}"): 1,
        ("404", "GET", "other"): 2,
        ("405", "other", "/v1/jobs"): 1,
        ("200", "GET", "/healthz"): 1,
    }


def test_durations_fall_into_their_buckets() -> None:
    metrics = ServiceMetrics()
    for seconds in (0.0005, 0.001, 0.0011, 4.0, 60.0):
        metrics.count_request("/", "GET", 200, seconds)
    name, labels = "gravac_http_request_duration_seconds", {"route": "/", "method": "GET", "code": "200"}
    value = metrics.registry.get_sample_value
    assert value(f"{name}_sum", labels) == pytest.approx(64.0026)
    counts = {
        bound: value(f"{name}_bucket", labels | {"le": bound})
        for bound in ("0.001", "0.002", "2.0", "5.0", "+Inf")
    }
    assert counts == {"0.001": 2, "0.002": 3, "2.0": 3, "5.0": 4, "+Inf": 5}
