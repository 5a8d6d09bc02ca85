"""``gravac status`` and ``explain``: on a trace, on a controller, and where there is none."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gravac.predict import Recording
from gravac.predict.advice import other_optimizers
from gravac.protocol import End, NetworkSpec, WindowReport
from gravac.traces import read_trace
from gravac_controller.cli import main
from gravac_controller.cli.source import NEWEST
from gravac_controller.client import discovery
from gravac_controller.settings import DEFAULT_PORT
from tests.controller.cli.conftest import OPERATOR
from tests.support import predicted
from tests.support.efficiencies import fixed_efficiencies
from tests.support.predicted import job_trace
from tests.support.traces_made import make
from tools.harness.builders import PostedJob
from tools.harness.controller import Controller

pytestmark = pytest.mark.distributed

TRACE = str(Path(__file__).parents[2] / "traces/first-light.jsonl")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(autouse=True, scope="module")
def fixed_table() -> Iterator[None]:
    with fixed_efficiencies():
        yield


def test_explaining_an_epoch_of_a_trace() -> None:
    output = run("explain", "2", TRACE)
    assert "job, epoch 2 (over): largest 10 % → largest 5 %" in output
    assert "after window 2, rule climb, phase explore" in output
    assert (
        "CF 10 keeps 0.60 of the gradient (≥ ε 0.30) and gives 175 useful samples/s against 58.2 dense"
        in output
    )
    assert "Each step sends CF 20 if its gain is at least 0.3, else CF 10" in output
    assert re.search(r"largest 10 % +0\.6 +291 +175 +2 +measured\n", output)
    assert "Since then: 1 window, steps 150 to 199, 170 ms per step (dense 1.10 s)" in output
    assert run("explain", TRACE, "2") == output


def test_old_jobs_are_left_out(tmp_path: Path) -> None:
    """``status`` asked for all details of each of 500 old jobs. And of one that runs ``explain`` says the same by its
    controller as by its journal."""
    journal = tmp_path / "runs/adam/journal.jsonl"
    journal.parent.mkdir(parents=True)
    by_trace = run("explain", str(job_trace(journal, job="adam")))
    controller = Controller(tmp_path / "runs")
    assert last_line(run("explain", "adam", controller.url)) == last_line(by_trace) == by_windows(journal)
    for number in range(NEWEST + 2):
        old = PostedJob(controller, f"old-{number}")
        end = End(incarnation=old.trainer.incarnation, windows=0, steps=0, message="done")
        assert controller.ask("POST", f"/v1/jobs/old-{number}/end", end).status == 200
    PostedJob(controller, "young").windows(1)
    printed = run("status", controller.url)
    assert "2 older jobs at" in printed
    shown = [name for name in ("old-0", "old-1", "old-2", "old-6", "young") if f"\n{name} " in printed]
    assert shown == ["old-2", "old-6", "young"]
    assert "old-0, epoch 0 (in force)" in run("explain", "old-0", controller.url)
    controller.stop()


def last_line(output: str) -> str:
    return " ".join(output[output.rindex("\n\n") :].split())


def by_windows(journal: Path) -> str:
    return other_optimizers(Recording.from_trace(read_trace(journal)))


def test_explaining_says_what_another_optimizer_would_bring(tmp_path: Path) -> None:
    """From a recorded trace, by its windows, or nothing at all."""
    journal = job_trace(tmp_path / "journal.jsonl")
    output, said = run("explain", str(journal)), by_windows(journal)
    assert last_line(output) == said
    assert said.startswith("With gravac.optim.AdamW, training is predicted to be ")
    assert " It then sends topk+twobit at CF " in said
    assert json.loads(run("explain", str(journal), "--json"))["other_optimizers"] == said
    for kind in ("adam-aged", "adam-low-beta"):
        journal = job_trace(tmp_path / kind, kind)
        assert "optim" not in run("explain", str(journal)), "it does what another one would"
        assert json.loads(run("explain", str(journal), "--json"))["other_optimizers"] is None


@pytest.mark.parametrize(
    ("sharing", "said"), [(1, "on a link."), (4, "on a link, which 4 ranks share.")], ids=["own", "shared"]
)
def test_explaining_says_what_the_network_was_at_the_start(tmp_path: Path, sharing: int, said: str) -> None:
    start = NetworkSpec(latency_seconds=2.5e-4, bytes_per_second=1.25e7, ranks_per_link=sharing)
    printed = run("explain", str(job_trace(tmp_path / "journal.jsonl", link=None, network=start)))
    assert f"The network at the start: 0.25 ms a message and 12.5 MB/s {said}" in printed


def test_a_pause_is_no_part_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a trainer evaluates between steps: it would have with dense ones, which are known without it."""
    without, made = run("explain", str(job_trace(tmp_path / "without"))), predicted.windows

    def waiting(*given: Any, **options: Any) -> Iterator[WindowReport]:
        for report in made(*given, **options):
            wait = 3.0 * report.seconds
            phases = report.phases.model_copy(update={"data_wait": wait})
            yield report.model_copy(update={"seconds": 4.0 * report.seconds, "phases": phases})

    monkeypatch.setattr(predicted, "windows", waiting)
    paused = run("explain", str(job_trace(tmp_path / "with")))
    step = re.compile(r"[\d.]+ m?s per step")
    assert step.findall(paused) == step.findall(without) != []
    longer = json.loads(run("explain", str(tmp_path / "with"), "--json"))
    assert longer["step_seconds"] == pytest.approx(4.0 * longer["usual_step_seconds"], rel=0.01)


def test_explaining_what_is_in_force() -> None:
    output = run("explain", TRACE)
    assert "epoch 3 (in force): largest 5 % → largest 10 %" in output
    assert "Confirmed after 5 later windows, last after window 7: Holding CF 10" in output
    facts = json.loads(run("explain", TRACE, "--json"))
    assert (facts["epoch"], facts["in_force"], facts["cf_before"], facts["windows"]) == (3, True, 20.0, 4)
    assert facts["decision"]["rule"] == "top"
    assert (facts["codec_before"], facts["codec"]) == ("topk", "topk")
    assert facts["efficiency"] == pytest.approx(0.7), "no optimizer is known, so as under Adam"
    assert facts["step_seconds"] == pytest.approx(0.22)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["explain", "9", TRACE], 1, "no decision of epoch 9; the one in force is 3"),
        (["explain", "1", "2"], 2, "at most one EPOCH, got 1 and 2"),
        (["explain", "other", TRACE], 1, f"no job 'other' at {TRACE}; jobs here: job"),
        (["status", "--watch", "jbo", TRACE], 1, "no job 'jbo' (did you mean 'job'?)"),
        (["status", TRACE, "other"], 1, "no job 'other'"),
        (["status", "one", "two"], 2, "at most one JOB, got one and two"),
        (["status", TRACE, "http://x"], 2, "at most one SOURCE"),
        (["explain", "ftp://x"], 2, "not an address"),
        (["status", str(Path(__file__).parent)], 2, "not an address"),
        (["status", "--watch", __file__], 1, "line 1"),
    ],
)
def test_what_cannot_be_shown(arguments: list[str], code: int, words: str) -> None:
    assert words in " ".join(run(*arguments, code=code).split())


def test_status_of_a_trace_and_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_bytes(Path(TRACE).read_bytes())
    for source in (TRACE, str(tmp_path)):
        facts = json.loads(run("status", source, "--json"))
        assert [(one["job"], one["state"], one["cf"]) for one in facts["jobs"]] == [("job", "ended", 10.0)]


def test_without_an_address_the_running_controller_is_found(job: PostedJob, tmp_path: Path) -> None:
    folder = ["--data-dir", str(job.controller.data_dir)]
    assert "alpha" in run("status", *folder)
    assert json.loads(run("status", *folder, "--json"))["url"] == job.controller.url
    assert "in force" in run("explain", *folder)
    output = " ".join(run("status", "--data-dir", str(tmp_path), code=1).split())
    assert f"no controller serves {tmp_path}" in output
    assert f"{tmp_path} has no journal" in output


def test_a_controller_of_another_folder_is_nobodys_default(
    job: PostedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at the default port, where on a shared machine another user's may listen, as it may during this test."""
    monkeypatch.chdir(tmp_path)
    try:
        other = Controller(tmp_path / "others", port=DEFAULT_PORT)
    except RuntimeError:
        other = None
    try:
        for command in (["status"], ["status", "--watch"], ["explain"], ["steer", "alpha", "dense"]):
            assert "no controller serves gravac-runs" in " ".join(run(*command, code=1).split())
        assert "GRAVAC_CONTROLLER" in run("steer", "alpha", "dense", code=1)
        monkeypatch.setenv("GRAVAC_DATA_DIR", str(job.controller.data_dir))
        assert json.loads(run("status", "--json"))["url"] == job.controller.url
        monkeypatch.setenv("GRAVAC_DATA_DIR", "mine")
        for unset in ("auto", "none", ""):
            monkeypatch.setenv("GRAVAC_CONTROLLER", unset)
            assert "no controller serves" in run("status", code=1)
        monkeypatch.setenv("GRAVAC_CONTROLLER", job.controller.url)
        assert json.loads(run("status", "--json"))["url"] == job.controller.url
        assert "in force" in run("explain", "alpha")
        assert "token" in run("steer", "alpha", "dense", "--wait", "0", code=1)
        assert "no controller serves" in run("status", "--data-dir", "mine", code=1)
        monkeypatch.setenv("GRAVAC_CONTROLLER", "ftp://x")
        assert "GRAVAC_CONTROLLER: URL 'ftp://x': not an address" in run("status", code=2)
    finally:
        if other is not None:
            other.stop()


def test_a_slow_controller_is_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "PROBE_SECONDS", 0.3)
    controller = Controller(tmp_path / "runs")
    try:
        PostedJob(controller, "beta").windows(1)
        controller.process.send_signal(signal.SIGSTOP)
        for command in (["status"], ["steer", "beta", "dense"]):
            output = run(*command, "--data-dir", str(tmp_path / "runs"), code=1)
            assert f"{controller.url} did not answer in time" in output
            assert "o controller" not in output
    finally:
        controller.process.send_signal(signal.SIGCONT)
        controller.stop()


def test_where_no_controller_runs_the_newest_journals_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(["newest", "second", "third", "fourth", "fifth", "sixth"]):
        path = tmp_path / "gravac-runs" / name / "journal.jsonl"
        make(path, windows=3 + age)
        os.utime(path, (2_000_000_000 - age, 2_000_000_000 - age))
    broken = tmp_path / "gravac-runs" / "broken \x1b[2J" / "journal.jsonl"
    broken.parent.mkdir()
    broken.write_text("no trace")
    shown = json.loads(CliRunner().invoke(main, ["status", "--json"]).stdout)["controllers"]
    names = ["newest", "second", "third", "fourth", "fifth"]
    assert [one["url"] for one in shown] == [f"gravac-runs/{name}/journal.jsonl" for name in names]
    assert [one["jobs"][0]["windows"] for one in shown] == [3, 4, 5, 6, 7]
    output = run("status")
    assert "Its newest journals (2 older ones are not shown)" in output
    assert "At gravac-runs/newest/journal.jsonl:" in output
    assert len([one for one in run("status", "--watch").splitlines() if "  step " in one]) == 3
    assert "after window" in run("explain")
    make(tmp_path / "gravac-runs" / "job" / "journal.jsonl", windows=2)
    os.utime(tmp_path / "gravac-runs" / "job" / "journal.jsonl", (1_900_000_000, 1_900_000_000))
    assert json.loads(run("explain", "job", "--json"))["job"] == "job", "older than those that are listed"
    assert json.loads(run("status", "job", "--json"))["url"] == "gravac-runs/job/journal.jsonl"
    assert "no job 'newst' (did you mean 'newest'?) at gravac-runs; jobs here: " in run(
        "status", "--watch", "newst", code=1
    )
    broken.touch()  # now the newest, and still no trace
    os.utime(broken, (2_100_000_000, 2_100_000_000))
    output = run("status")
    assert "is skipped: " in output
    assert "\x1b" not in output
    assert "At gravac-runs/newest/journal.jsonl:" in output


def test_a_training_that_was_killed_does_not_run(tmp_path: Path) -> None:
    """Its journal has no end. Whether it still runs is known by whether a process writes it."""
    controller = Controller(tmp_path / "runs")
    PostedJob(controller, "beta").windows(2)
    folder = tmp_path / "runs" / "beta"
    states = []
    for kill in (False, True):
        if kill:
            controller.kill()
        page = tmp_path / "beta.html"
        run("report", str(folder), "-o", str(page))
        shown = json.loads(run("status", str(folder), "--json"))["jobs"][0]["state"]
        states.append((shown, re.findall(r'"state": ?"(\w+)"', page.read_text())[0]))
    assert states == [("running", "running"), ("interrupted", "interrupted")]
    assert "interrupted" in run("status", str(folder))


def test_explaining_an_operators_order(job: PostedJob) -> None:
    seen = job.controller.ask("GET", "/v1/jobs/alpha/override").headers["etag"]
    order = b'{"action": "pin", "cf": 12.5, "actor": "alice", "note": "trying it"}'
    headers = {"Content-Type": "application/json", "If-Match": seen, "Authorization": f"Bearer {OPERATOR}"}
    assert job.controller.ask("PUT", "/v1/jobs/alpha/override", order, headers).status == 202
    job.windows(1)
    output = run("explain", job.controller.url)
    assert "alice pinned CF 12.5 until further notice, whatever its gain, because: trying it" in output
    assert "No window has run under it yet." in output
    before = job.decision.model_copy(update={"epoch": job.decision.epoch - 1, "cf_candidate": 10.0})
    for _ in range(2):
        report = job.trainer.report(before)
        assert job.controller.ask("POST", "/v1/jobs/alpha/windows", report).status == 200
    output = run("explain", job.controller.url)
    later = "No window ran under it: 2 later windows ran under an earlier decision or in fallback"
    assert f"{later}." in output
    assert json.loads(run("status", job.controller.url, "--json"))["jobs"][0]["override"]["actor"] == "alice"
    end = End(incarnation="first", windows=8, steps=400, message="done")
    assert job.controller.ask("POST", "/v1/jobs/alpha/end", end).status == 200
    assert f"{later}, and then the job ended." in run("explain", job.controller.url)
