"""OpenTelemetry: a collector gets the rows, and one that does not answer is named."""

import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gravac_agent.sinks.base import METRICS
from tests.agent.sinks.test_base import expected, train

pytestmark = [
    pytest.mark.usefixtures("world_of_one"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture
def collector() -> Iterator[tuple[str, dict[str, list[bytes]]]]:
    """An OTLP collector: its address, and the bodies that it got by path."""
    got: dict[str, list[bytes]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.setdefault(self.path, []).append(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_otlp(collector: tuple[str, dict[str, list[bytes]]]) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    url, got = collector
    windows, decisions = train(f"otlp:endpoint={url}")
    points: dict[str, list[tuple[float, dict[str, str]]]] = {}
    for body in got["/v1/metrics"]:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                for point in metric.gauge.data_points:
                    labels = {each.key: each.value.string_value for each in point.attributes}
                    points.setdefault(metric.name, []).append((point.as_double, labels))
    assert set(points) == set(METRICS.values())
    for name, metric in METRICS.items():
        assert points[metric][-1] == (expected(windows, name)[-1][1], {"job_name": "job"})
    records = [
        record
        for body in got["/v1/logs"]
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]
    assert [record.body.string_value for record in records] == [each.reason for each in decisions]
    assert {record.event_name for record in records} == {"gravac.decision"}


def test_a_collector_that_does_not_answer_is_said(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    with caplog.at_level(logging.WARNING), pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        train("otlp:endpoint=http://127.0.0.1:9")
    assert "sink otlp failed; training goes on: ConnectionError" in caplog.text
    assert "sink otlp lacks" in caplog.text
