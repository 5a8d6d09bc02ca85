"""A real Prometheus, with the shipped configuration and rules, scrapes a real job of two ranks: every panel has data.

A minute of it: ``SCRAPE_SECONDS=60 pytest tests/ranks/test_monitored.py``; else as soon as everything has data.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.monitoring.prometheus import PATIENCE_SECONDS, Prometheus
from tests.support.monitoring.shipped import asks, rules, selectors
from tests.support.ranks.harness import run_ranks
from tools.harness.controller import Controller

JOB = "monitored"
LEAST_SECONDS = float(os.environ.get("SCRAPE_SECONDS", "0"))

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="Prometheus is not installed (Debian: prometheus)"
    ),
]


@dataclass
class Scene:
    """A controller, its job, and the Prometheus that watches both. ``over``: a test has ended them."""

    controller: Controller
    prometheus: Prometheus
    folder: Path
    failures: list[BaseException] = field(default_factory=list)
    over: bool = False

    def order(self, what: str) -> None:
        """``fault``: gradients become non-finite. ``stop``: the training ends."""
        (self.folder / what).touch()

    def wait(self, what: str, found: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until ``found`` is true."""
        until = time.monotonic() + seconds
        while not found():
            assert not self.failures, self.failures
            assert time.monotonic() < until, f"{what} takes too long"
            time.sleep(0.5)

    def firing(self) -> set[str]:
        """Return the alerts that fire."""
        alerts = self.prometheus.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


@contextmanager
def watched(folder: Path) -> Iterator[Scene]:
    """A job in training, once every panel and every rule has its data."""
    ranks = folder / "ranks"
    ranks.mkdir()
    controller = Controller(folder / "runs")
    try:
        with Prometheus(folder, controller.url) as prometheus:
            scene = Scene(controller, prometheus, ranks)

            def train() -> None:
                try:
                    run_ranks(ranks, "monitored", url=controller.url, job=JOB, seconds=250)
                except BaseException as error:
                    scene.failures.append(error)

            thread = threading.Thread(target=train)
            thread.start()
            try:
                wait_for_data(scene)
                yield scene
            finally:
                scene.order("stop")
                thread.join()
    finally:
        controller.stop()


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Scene]]:
    """The scene: the one there is, else a new one. Workers share tests out in any order, each its own scene."""
    with ExitStack() as stack:
        scenes: list[Scene] = []

        def current() -> Scene:
            if not scenes or scenes[-1].over:
                stack.close()
                scenes.append(stack.enter_context(watched(tmp_path_factory.mktemp("monitored"))))
            return scenes[-1]

        yield current


@pytest.fixture
def scene(watch: Callable[[], Scene]) -> Scene:
    return watch()


def for_grafana(expr: str) -> str:
    """An expression as Grafana sends it, with its variables filled in."""
    for name, value in {"$job_name": JOB, "$rank": ".*", "$__rate_interval": "4s"}.items():
        expr = expr.replace(name, value)
    return expr


def wait_for_data(scene: Scene, least_seconds: float = 0.0) -> None:
    """Until all panels have data at one time; not at any: a job that measures again has no candidates for a few
    windows. And until all rules were evaluated."""
    began, waiting = time.monotonic(), list[str]()

    def complete() -> bool:
        needed = (ask for ask in asks() if not ask.may_be_empty)
        waiting[:] = [ask.panel for ask in needed if not scene.prometheus.query(for_grafana(ask.expr))]
        waiting.extend(name for name, rule in evaluated(scene).items() if rule["health"] == "unknown")
        return not waiting and time.monotonic() - began >= least_seconds

    try:
        scene.wait("data", complete, least_seconds + PATIENCE_SECONDS)
    except AssertionError:
        assert waiting == []
        raise


def evaluated(scene: Scene) -> dict[str, dict[str, Any]]:
    """The rules as Prometheus has them, by name."""
    groups = scene.prometheus.ask("rules")["groups"]
    return {rule["name"]: rule for group in groups for rule in group["rules"]}


def test_every_panel_shows_data(scene: Scene) -> None:
    wait_for_data(scene, LEAST_SECONDS)


def test_prometheus_has_the_controllers_figures(scene: Scene) -> None:
    def agree() -> bool:
        (found,) = scene.prometheus.query(f'gravac_steps_total{{job_name="{JOB}"}}')
        job = scene.controller.ask("GET", f"/v1/jobs/{JOB}").json
        behind = job["steps"] - float(found["value"][1])
        return bool(0 <= behind <= 10 * job["steps"] / job["windows"])  # it is a second behind

    scene.wait("the number of steps", agree)


def test_the_targets_are_the_controller_and_its_job_and_are_up(scene: Scene) -> None:
    targets = scene.prometheus.ask("targets?state=active")["activeTargets"]
    assert {target["scrapeUrl"].removeprefix(scene.controller.url) for target in targets} == {
        "/metrics/service",
        f"/v1/jobs/{JOB}/metrics",
    }
    assert [target["lastError"] for target in targets] == ["", ""]
    assert {target["labels"].get("job_name") for target in targets} == {None, JOB}


def test_every_rule_is_evaluated_on_data(scene: Scene) -> None:
    """Recording rules have results. No alert fires without a fault, but the series that alerts read exist."""
    found = evaluated(scene)
    assert set(found) == set(rules())
    assert {name: rule.get("lastError") for name, rule in found.items() if rule["health"] != "ok"} == {}
    for name, rule in rules().items():
        if "record" in rule:
            assert scene.prometheus.query(name), name
            assert scene.prometheus.query(rule["expr"]), name
        for selector in selectors(rule["expr"]):
            assert scene.prometheus.query(selector), f"{name} looks at {selector}, which nothing feeds"


def test_each_alert_fires_for_its_fault(scene: Scene) -> None:
    assert scene.firing() == set()
    scene.order("fault")
    scene.wait("the alert", lambda: "GravacNonFiniteSteps" in scene.firing())
    (alert,) = (
        one
        for one in scene.prometheus.ask("alerts")["alerts"]
        if one["labels"]["alertname"] == "GravacNonFiniteSteps"
    )
    assert alert["labels"]["job_name"] == JOB
    assert alert["annotations"]["summary"].startswith(f"{JOB}: ")
    assert scene.prometheus.query(f'gravac_faulty_steps_total{{job_name="{JOB}", reason="nonfinite"}} > 0')


def test_a_training_that_ends_and_a_controller_that_dies_are_seen(scene: Scene) -> None:
    scene.over = True
    scene.order("stop")
    ended = f'gravac_job_state{{job_name="{JOB}", state="ended"}} == 1'
    scene.wait("the end of the job", lambda: scene.prometheus.query(ended))
    scene.controller.kill()
    pending = 'ALERTS{alertname="GravacControllerDown"}'
    scene.wait("the controller's alert", lambda: scene.prometheus.query(pending))
    (found,) = scene.prometheus.query(pending)
    assert found["metric"]["instance"] == f"{scene.controller.host}:{scene.controller.port}"
