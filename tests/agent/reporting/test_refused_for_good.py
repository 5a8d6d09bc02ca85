"""A controller that refuses a run for good: the training ends at once, and nothing is promised that is not there."""

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gravac.protocol import End, Event
from gravac.traces import read_trace
from gravac_agent import Agent
from gravac_agent.reporting.http_reporter import HttpReporter
from gravac_agent.settings import AgentSettings
from tests.support.peer import SPEC, eventually, window_report
from tests.support.small_model import pair, step
from tools.harness.builders import PostedJob
from tools.harness.controller import Controller

pytestmark = pytest.mark.usefixtures("world_of_one")


def late(folder: Path, **given: Any) -> float:
    """Train, and return how many seconds the end took."""
    module, optimizer = pair()
    agent = Agent(module, optimizer, job="refused", data_dir=folder, window=3, policy="static:cf=2", **given)
    with agent:
        for _ in range(7):
            step(module, optimizer)
        time.sleep(1.0)  # so that the first answer is there
        began = time.monotonic()
    return time.monotonic() - began


def last_line(text: str) -> str:
    (line,) = re.findall(r"job refused ended after 7 steps.*", text)
    return line


@pytest.fixture(autouse=True)
def said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gravac.agent")


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Controller]:
    """A controller that has all the jobs it takes, with one more that may come back."""
    controller = Controller(tmp_path / "runs", limits={"max_jobs": 1})
    yield controller
    controller.stop()


@pytest.mark.distributed
def test_a_controller_that_takes_no_more_jobs_delays_no_end(
    full: Controller, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    PostedJob(full, "other")
    assert late(tmp_path / "ours", controller=full.url) < 2.5
    assert "already holds 1 jobs" in caplog.text
    assert "the journal of job refused lacks 3 windows that were never acknowledged, 1 events" in caplog.text
    line = last_line(caplog.text)
    assert ", without a journal: no controller accepted this run" in line
    assert full.url not in line


def second(controller: Controller) -> HttpReporter:
    """A start of the job that another start has registered."""
    settings = AgentSettings(controller=controller.url)
    return HttpReporter(SPEC.model_copy(update={"incarnation": "second"}), settings, process=None)


END = End(incarnation="second", windows=1, steps=50, message="finished")


def closed(reporter: HttpReporter) -> float:
    began = time.monotonic()
    reporter.close(END)
    return time.monotonic() - began


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    found = Controller(tmp_path / "runs")
    yield found
    found.stop()


def test_a_name_that_stays_in_use_is_not_waited_for(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that has not reported a window holds its name for half a minute, which is longer than an end may take."""
    assert controller.ask("POST", "/v1/jobs", SPEC).status == 200
    reporter = second(controller)
    reporter.report_window(window_report(0))
    eventually(lambda: "is held by run" in caplog.text)
    assert closed(reporter) < 2.5
    assert "lacks 1 windows that were never acknowledged" in caplog.text


def test_a_name_that_comes_free_before_the_end_is_waited_for(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    assert controller.ask("POST", "/v1/jobs", SPEC).status == 200
    short = window_report(0).model_copy(update={"incarnation": SPEC.incarnation, "seconds": 0.1})
    assert controller.ask("POST", f"/v1/jobs/{SPEC.job}/windows", short).status == 200
    reporter = second(controller)
    reporter.report_window(window_report(0).model_copy(update={"incarnation": "second"}))
    eventually(lambda: "is held by run" in caplog.text)
    closed(reporter)
    assert "lacks" not in caplog.text


def test_a_record_that_is_refused_for_good_does_not_take_the_others_with_it(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = second(controller)
    assert reporter.wait_ready(60)
    reporter.report_event(Event(kind="gap", window=None, message="which only controllers write"))
    reporter.report_window(window_report(0).model_copy(update={"incarnation": "second"}))
    assert closed(reporter) < 3.5
    assert "an event is dropped because the controller keeps refusing it" in caplog.text
    assert "the journal of job job lacks 1 events" in caplog.text
    kinds = [line.kind for line in read_trace(controller.data_dir / SPEC.job / "journal.jsonl")]
    assert kinds[-3:] == ["window", "decision", "end"]
