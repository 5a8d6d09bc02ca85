"""``gravac status`` against a real controller, against nothing, and against something else."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gravac.protocol import JobAnswer
from gravac_controller.cli import main
from tests.support.peer import SPEC, serving
from tools.harness.builders import Trainer, spec
from tools.harness.controller import Controller

pytestmark = pytest.mark.distributed


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    running = Controller(tmp_path / "runs")
    yield running
    running.stop()


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["status", *arguments])
    return result.exit_code, result.output


def test_one_line_a_job_with_its_reason(controller: Controller) -> None:
    code, output = run(controller.url)
    assert code == 0
    assert "no jobs yet" in output
    for name in ("first", "second"):
        answer = JobAnswer.model_validate_json(controller.ask("POST", "/v1/jobs", spec(name)).body)
    controller.ask("POST", "/v1/jobs/second/windows", Trainer("second").report(answer.decision))
    code, output = run(controller.url + "/")
    assert code == 0
    first, second = (
        next(line for line in output.splitlines() if line.startswith(f"{n} ")) for n in ("first", "second")
    )
    assert "running" in first
    assert "dense" in second
    assert "Dense baseline" in " ".join(output.split())

    code, output = run(controller.url.removeprefix("http://") + "/v1/jobs", "--json")
    jobs = json.loads(output)["jobs"]
    assert [job["job"] for job in jobs] == ["first", "second"]
    assert jobs[1]["steps"] == 50
    assert (jobs[1]["efficiency"], jobs[0]["efficiency"]) == (1.0, None)
    assert jobs[1]["useful_samples_per_second"] == jobs[1]["samples_per_second"] > 0
    assert jobs[1]["reason"].startswith("Dense baseline")


def test_more_jobs_than_a_page(controller: Controller) -> None:
    names = [f"job-{number:03}" for number in range(130)]
    for name in names:
        assert controller.ask("POST", "/v1/jobs", spec(name)).status == 200
    _, output = run(controller.url, "--json")
    assert [job["job"] for job in json.loads(output)["jobs"]] == names


def test_nothing_listens() -> None:
    code, output = run("http://127.0.0.1:1")
    assert code == 1
    assert "no controller answers at http://127.0.0.1:1" in output
    assert "gravac serve" in output


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "http://", "http://127.0.0.1:99999", "http://[::1"])
def test_not_an_address(url: str) -> None:
    code, output = run(url)
    assert code == 2
    assert url in output


def test_something_else_answers() -> None:
    with serving(SPEC, None) as peer:
        peer.invalid = lambda handler, body: handler.answer('{"hello": "\x1b[2J"}')
        code, output = run(peer.url)
    assert code == 1
    assert "not a gravac controller" in output
    assert "\x1b" not in output
