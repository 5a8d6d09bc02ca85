"""Sinks with their real clients, offline, on real trainings of one rank. Clients that are missing are skipped."""

import json
import logging
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

import gravac
from gravac.protocol import Decision, JobSpec, WindowReport
from gravac_agent.errors import SetupError
from gravac_agent.reporting.http_reporter import HttpReporter
from gravac_agent.settings import AgentSettings
from gravac_agent.sinks import SINKS, Sink, SinkRow, feed, parse
from gravac_agent.sinks.base import METRICS, figures_of_window
from gravac_controller.metrics.table import TABLE
from tests.support.peer import SPEC, TOKEN, eventually, job_end, serving, window_report
from tests.support.small_model import pair, step

pytestmark = [
    pytest.mark.usefixtures("world_of_one"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
Told = tuple[list[WindowReport], list[Decision]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(feed, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(feed, "CLOSE_SECONDS", 60.0)  # clients start slowly on a busy machine
    monkeypatch.chdir(tmp_path)


def train(sink: object, steps: int = 12, **settings: Any) -> Told:
    """Train, and return the windows and decisions of the journal."""
    module, optimizer = pair()
    given = {"policy": "static:cf=10", "controller": None, "window": 4, "job": "job"} | settings
    with gravac.Agent(module, optimizer, sink=sink, **given) as agent:
        for number in range(steps):
            step(module, optimizer)
            agent.log(loss=float(number))
    records = journal()
    return (
        [record for record in records if isinstance(record, WindowReport)],
        [record for record in records if isinstance(record, Decision)],
    )


def journal() -> list[object]:
    with gravac.read_trace("gravac-runs/job/journal.jsonl") as lines:
        return [line.record for line in lines]


def expected(windows: Sequence[WindowReport], name: str) -> list[tuple[int, float]]:
    spec = next(record for record in journal() if isinstance(record, JobSpec))
    return [(each.last_step + 1, figures_of_window(each, spec)[name]) for each in windows]


class Listed(Sink):
    """Keeps its rows."""

    name = "listed"
    client = "json"
    act: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    def __init__(self, own: object = None) -> None:
        super().__init__(own)
        self.rows: list[SinkRow] = []
        self.threads: set[str] = set()
        self.writes = 0
        self.ended = False

    def open(self, spec: JobSpec) -> None:
        assert spec.job == "job"

    def write(self, rows: Sequence[SinkRow]) -> None:
        self.act()
        self.rows += rows
        self.writes += 1
        self.threads.add(threading.current_thread().name)

    def close(self) -> None:
        self.ended = True


def test_rows_are_the_windows_and_decisions_of_the_journal() -> None:
    sink = Listed()
    windows, decisions = train([sink, "none"])
    found = [row for row in sink.rows if row.figures]
    assert [(row.step, row.figures["gravac/loss"]) for row in found] == expected(windows, "gravac/loss")
    assert [row.step for row in found] == [4, 8, 12]
    assert found[-1].figures["gravac/cf"] == found[-1].figures["gravac/plan/topk-bf16"] == 10.0
    assert found[-1].figures["gravac/wire_cf"] == windows[-1].dense_bytes / windows[-1].payload_bytes > 3.0
    assert [row.decision for row in sink.rows if row.decision is not None] == decisions
    assert sink.threads == {"gravac-sink-listed"}
    assert sink.ended


def test_a_controllers_decisions_and_its_page_are_told() -> None:
    sink = Listed()
    with serving(SPEC, TOKEN) as peer:
        settings = AgentSettings(controller=peer.url, token=TOKEN)
        reporter = HttpReporter(SPEC, settings, process=None, sinks=[sink])
        reports = [window_report(window) for window in range(3)]
        for number, report in enumerate(reports):
            reporter.report_window(report)
            eventually(lambda number=number: len(peer.windows) == number + 1)
        reporter.close(job_end(3))
        assert [row.page for row in sink.rows if row.page is not None] == [peer.url]
        decided = [row.decision for row in sink.rows if row.decision is not None]
        assert decided[-1] == peer.fold.decision
    assert [row.step for row in sink.rows if row.figures] == [each.last_step + 1 for each in reports]
    assert len(decided) == 4


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ("wandbb", r"sink='wandbb' is unknown \(did you mean 'wandb'\?\); choose one of mlflow, otlp, "),
        ("tensorboard:folder=x", r"sink='tensorboard:folder=x' has no setting 'folder'.*; it has dir"),
        ("otlp:http://host:4318", "must be written setting=value"),
        (5, r"sink=5: write a name \(mlflow, .*\), or pass an object of .*torch.SummaryWriter"),
        (["wandb", object()], "sink=<object"),
    ],
)
def test_a_wrong_sink_is_named(sink: object, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        gravac.Agent(*pair(), sink=sink)


def test_a_missing_client_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    agent = gravac.Agent(*pair(), controller=None, sink="wandb")
    with pytest.raises(SetupError, match=r"sink='wandb' needs a package .*pip install 'gravac\[wandb\]'"):
        agent.start()
    extras = Path(__file__).parents[3].joinpath("pyproject.toml").read_text()
    for name in SINKS:
        assert f"\n{name} = [" in extras


def test_values_of_settings_are_texts() -> None:
    first, second = parse("tensorboard:dir=runs/x; mlflow:uri=sqlite:///a/b.db,run=12")
    assert vars(first)["_dir"] == "runs/x"
    assert (vars(second)["_uri"], vars(second)["_run"]) == ("sqlite:///a/b.db", "12")


def test_metrics_are_named_as_the_controllers() -> None:
    assert set(METRICS.values()) <= {metric.name for metric in TABLE}


def scalars(folder: str) -> Any:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(folder)
    found.Reload()
    return found


def test_tensorboard() -> None:
    pytest.importorskip("tensorboard")
    windows, decisions = train("tensorboard:dir=board/x")
    found = scalars("board/x")
    for name in ("gravac/loss", "gravac/wire_cf", "gravac/plan/topk-bf16"):
        values = [(each.step, each.value) for each in found.Scalars(name)]
        assert values == [(step, pytest.approx(value)) for step, value in expected(windows, name)]
    texts = [
        each.tensor_proto.string_val[0].decode() for each in found.Tensors("gravac/decision/text_summary")
    ]
    assert texts == [f"{each.rule}: {each.reason}" for each in decisions]


def test_a_summary_writer_of_the_program_stays_open() -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("board")
    windows, _ = train(writer)
    writer.add_scalar("mine", 1.0, 1)
    writer.close()
    found = scalars("board")
    assert len(found.Scalars("gravac/loss")) == len(windows)
    assert len(found.Scalars("mine")) == 1


@pytest.mark.parametrize("own", [False, True])
def test_mlflow(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(Path("mlruns").absolute().as_uri())
    client = mlflow.MlflowClient()
    if own:
        with mlflow.start_run() as run:
            windows, decisions = train(run)
            assert client.get_run(run.info.run_id).info.status == "RUNNING"
    else:
        windows, decisions = train("mlflow:experiment=mine")
        (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
        assert (run.info.run_name, run.info.status) == ("job", "FINISHED")
    found = client.get_metric_history(run.info.run_id, "gravac/loss")
    assert [(each.step, each.value) for each in found] == expected(windows, "gravac/loss")
    assert client.get_run(run.info.run_id).data.tags["gravac.decision"] == decisions[-1].reason
    text = mlflow.artifacts.load_text(f"runs:/{run.info.run_id}/gravac/decisions.txt")
    assert text.splitlines()[-1] == f"step 12, {decisions[-1].rule}: {decisions[-1].reason}"


def wandb_rows(folder: Path) -> list[dict[str, Any]]:
    """The history in the file of an offline run, which is a log of LevelDB behind a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.rglob("*.wandb")
    data, at, text, rows = file.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        size, kind = struct.unpack_from("<HB", data, at + 4)
        text += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            items = wandb_internal_pb2.Record.FromString(text).history.item
            row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
            rows += [row] if row else []
            text = b""
    return rows


@pytest.mark.parametrize("own", [False, True])
def test_wandb(own: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    if own:
        run = wandb.init(project="mine", settings=wandb.Settings(console="off", x_disable_stats=True))
        run.log({"mine": 1.0})
        windows, decisions = train(run)
        assert run.step == 1  # the program's steps are its own
        run.log({"mine": 2.0})
        run.finish()
    else:
        windows, decisions = train("wandb:project=mine")
        assert wandb.run is None
    wandb.teardown()  # the next test has another folder
    rows = wandb_rows(tmp_path / "wandb")
    losses = [(row["gravac/step"], row["gravac/loss"]) for row in rows if "gravac/loss" in row]
    if own:
        assert [row["mine"] for row in rows if "mine" in row] == [1.0, 2.0]
        assert losses[-1] == expected(windows, "gravac/loss")[-1]
    else:
        assert losses == expected(windows, "gravac/loss")
        assert [row["gravac/reason"] for row in rows if "gravac/reason" in row] == [
            each.reason for each in decisions
        ]


@pytest.mark.parametrize("own", [False, True])
def test_trackio(own: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio")
    from trackio import sqlite_storage

    monkeypatch.setattr(sqlite_storage, "TRACKIO_DIR", tmp_path / "trackio")
    if own:
        run = trackio.init("mine", name="job", embed=False, auto_log_gpu=False, auto_log_cpu=False)
        windows, decisions = train(run)
        run.finish()
    else:
        windows, decisions = train("trackio:project=mine")
    rows = sqlite_storage.SQLiteStorage.get_logs("mine", "job")
    losses = [(row["gravac/step"], row["gravac/loss"]) for row in rows if "gravac/loss" in row]
    assert losses == expected(windows, "gravac/loss")
    assert [row["gravac/reason"] for row in rows if "gravac/reason" in row] == [
        each.reason for each in decisions
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
