"""Sinks get what the journal has, on real trainings of one rank; a wrong one, or a missing client, is named."""

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import gravac
from gravac.protocol import Decision, JobSpec, WindowReport
from gravac_agent.errors import SetupError
from gravac_agent.reporting.http_reporter import HttpReporter
from gravac_agent.settings import AgentSettings
from gravac_agent.sinks import SINKS, Sink, SinkRow, parse
from gravac_agent.sinks.base import METRICS, figures_of_window
from gravac_controller.metrics.table import TABLE
from tests.support.peer import SPEC, TOKEN, eventually, job_end, serving, window_report
from tests.support.small_model import pair, step

pytestmark = [
    pytest.mark.usefixtures("world_of_one"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
Told = tuple[list[WindowReport], list[Decision]]


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
