"""OpenTelemetry."""

from collections.abc import Sequence
from typing import Any, ClassVar

from gravac.protocol import JobSpec
from gravac_agent.sinks.base import METRICS, Sink, SinkRow

PACKAGE = "opentelemetry.exporter.otlp.proto.http"


class OtlpSink(Sink):
    """OpenTelemetry (OTLP/HTTP): gauges named and labeled as the controller's metrics, decisions as log records.

    Gauges describe the newest window. What it does not say is as the variables ``OTEL_EXPORTER_OTLP_…`` say.

    Args:
        own: Not used.
        endpoint: Address of the collector, such as ``http://collector:4318``.
    """

    name: ClassVar[str] = "otlp"
    client: ClassVar[str] = f"{PACKAGE}.metric_exporter"

    def __init__(self, own: Any = None, *, endpoint: str | None = None) -> None:
        super().__init__(own)
        self._endpoint = None if endpoint is None else endpoint.rstrip("/")
        self._labels: dict[str, str] = {}

    def open(self, spec: JobSpec) -> None:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        place = self._endpoint
        self._metrics = OTLPMetricExporter(None if place is None else f"{place}/v1/metrics")
        self._logs = OTLPLogExporter(None if place is None else f"{place}/v1/logs")
        self._resource = Resource.create({"service.name": "gravac"})
        self._scope = InstrumentationScope("gravac")
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader], self._resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("gravac")
        self._gauges = {name: meter.create_gauge(metric) for name, metric in METRICS.items()}
        self._labels = {"job_name": spec.job}

    def write(self, rows: Sequence[SinkRow]) -> None:
        newest = next((row.figures for row in reversed(rows) if row.figures), {})
        for name in newest.keys() & self._gauges.keys():
            self._gauges[name].set(newest[name], self._labels)
        if newest and (data := self._reader.get_metrics_data()) is not None:
            _check(self._metrics.export(data))
        if records := [record for row in rows for record in self._records(row)]:
            _check(self._logs.export(records))

    def _records(self, row: SinkRow) -> list[Any]:
        from opentelemetry._logs import LogRecord, SeverityNumber
        from opentelemetry.sdk._logs import ReadableLogRecord

        said: list[tuple[str, str, dict[str, Any]]] = []
        if row.decision is not None:
            labels = {"rule": row.decision.rule, "epoch": row.decision.epoch, "cf": row.decision.cf_candidate}
            said.append(("gravac.decision", row.decision.reason, labels))
        if row.page is not None:
            said.append(("gravac.page", row.page, {}))
        return [
            ReadableLogRecord(
                LogRecord(
                    timestamp=round(1e9 * row.time),
                    severity_number=SeverityNumber.INFO,
                    body=body,
                    attributes={**self._labels, "step": row.step, **labels},
                    event_name=event,
                ),
                self._resource,
                self._scope,
            )
            for event, body, labels in said
        ]

    def close(self) -> None:
        self._provider.shutdown()
        self._metrics.shutdown()
        self._logs.shutdown()


def _check(result: Any) -> None:
    if result.name != "SUCCESS":
        raise ConnectionError("the collector did not take what was sent; the log of opentelemetry says why")
