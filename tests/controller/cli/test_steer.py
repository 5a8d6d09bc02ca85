"""``gravac steer`` against real controllers, with and without the right to steer."""

import getpass
import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from gravac.policies import parse
from gravac.protocol import CodecSize, End
from gravac_controller.cli import main
from gravac_controller.lock import CONTROL_TOKEN_NAME
from tools.harness.builders import PostedJob
from tools.harness.controller import PATIENCE_SECONDS, Controller

pytestmark = pytest.mark.distributed

AGENT = "an-agents-token-0123456789abcdef"
OPERATOR = "an-operators-token-0123456789abc"


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostedJob]:
    """``alpha``, alone on a controller that its owner may steer."""
    controller = Controller(tmp_path_factory.mktemp("steering") / "runs", "--owner-may-steer")
    found = PostedJob(controller, "alpha")
    found.windows(3)
    yield found
    controller.stop()


@contextmanager
def trains_on(job: PostedJob) -> Iterator[None]:
    """While an order waits at the job's controller, its next window comes in."""
    over = threading.Event()

    def feed() -> None:
        while not over.wait(0.02):
            path = f"/v1/jobs/{job.trainer.job}/override"
            if job.controller.ask("GET", path).json["waiting"] is not None:
                job.windows(1)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_SECONDS)


def test_the_owner_of_the_folder_steers_without_a_token(
    job: PostedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ("--data-dir", job.controller.data_dir)
    me = getpass.getuser()
    with trains_on(job):
        said = run("steer", "alpha", "pin", 25, *folder, "--note", "20 was fine")
        assert f"alpha, epoch {job.decision.epoch}: {me} pinned CF 25 until further notice" in said
        assert "because: 20 was fine" in said
        assert job.decision.cf_candidate == 25
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("GRAVAC_CONTROLLER", job.controller.url)
            elsewhere.setenv("GRAVAC_DATA_DIR", str(job.controller.data_dir))
            said = run("steer", "alpha", "dense")
        assert f"{me} ordered dense until further notice" in said
        facts = json.loads(run("steer", "alpha", "pause", *folder, "--json"))
        assert facts["order"]["action"] == "pause"
        assert facts["decision"]["rule"] == "paused"
        assert facts["decision"]["epoch"] == facts["order"]["epoch"] + 1 == job.decision.epoch
        assert "gave the decision back to the policy" in run("steer", "alpha", "resume", *folder)
        assert "nothing to resume" in run("steer", "alpha", "resume", *folder)
    assert job.decision.rule == "resumed"


def test_an_order_that_nothing_obeys_yet(job: PostedJob) -> None:
    folder = ("--data-dir", job.controller.data_dir)
    for wait, more in (("0", "."), ("0.3", "; none ended within 0.3 s.")):
        said = run("steer", "alpha", "pin", 30, *folder, "--wait", wait)
        assert said == f"alpha: the order was accepted. It takes effect with the next window{more}"
    facts = json.loads(run("steer", "alpha", "pin", 31, *folder, "--wait", "0", "--json"))
    assert (facts["order"]["cf"], facts["decision"]) == (31.0, None)
    job.windows(1)
    assert job.decision.cf_candidate == 31
    with trains_on(job):
        run("steer", "alpha", "resume", *folder)


def test_the_token_is_left_to_the_owner_alone(
    job: PostedJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, file = ("--data-dir", job.controller.data_dir), job.controller.data_dir / CONTROL_TOKEN_NAME
    status = file.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o600, os.getuid())
    assert file.read_text() not in job.controller.log.read_text()
    for path in ("/v1/jobs", "/healthz", "/v1/jobs/alpha", "/metrics"):
        assert file.read_bytes() not in job.controller.ask("GET", path).body

    before = events(job)

    def refused() -> str:
        return run("steer", "alpha", "dense", *folder, "--wait", 0, code=1)

    file.chmod(0o640)
    assert "401" in refused()
    file.chmod(0o600)
    with monkeypatch.context() as somebody_else:
        somebody_else.setattr(os, "getuid", lambda: 12345)
        assert "401" in refused()
    elsewhere = tmp_path / "token"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert "401" in refused()
    file.unlink()
    assert "401" in refused()
    file.hardlink_to(elsewhere)
    assert "401" in refused()
    file.unlink()
    elsewhere.rename(file)
    assert events(job) == before


def events(job: PostedJob) -> list[dict[str, dict[str, str]]]:
    found: list[dict[str, dict[str, str]]] = job.controller.ask("GET", "/v1/jobs/alpha").json["events"]
    return found


def test_a_token_outlives_no_controller(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    file, env = folder / CONTROL_TOKEN_NAME, {"GRAVAC_CONTROLLER_OWNER_MAY_STEER": "true"}
    first = Controller(folder, env=env)
    token = file.read_text()
    assert len(token) >= 32
    first.kill()
    assert file.read_text() == token
    second = Controller(folder, env=env)
    assert file.read_text() != token
    second.stop()
    assert not file.exists()
    third = Controller(folder)
    assert not file.exists()
    third.stop()


def test_where_steering_is_off_it_says_how_to_turn_it_on(tmp_path: Path) -> None:
    controller = Controller(
        tmp_path / "runs", env={"GRAVAC_TOKEN": AGENT, "GRAVAC_CONTROLLER_LOOK_NEEDS_TOKEN": "false"}
    )
    try:
        answer = controller.ask("PUT", "/v1/jobs/alpha/override", b"{}", {"Content-Type": "application/json"})
        assert answer.status == 403
        for words in (
            "steering is off",
            "--owner-may-steer",
            "--control-token-file",
            "GRAVAC_STEERING=owner",
        ):
            assert words in answer.json["detail"]
        PostedJob(controller, "alpha", AGENT)
        said = run("steer", "alpha", "pin", 25, "--data-dir", tmp_path / "runs", code=1)
        assert "403" in said
        assert "steering is off" in said
        assert "GRAVAC_STEERING=owner" in said
    finally:
        controller.stop()


def test_without_the_control_token_it_is_the_control_token_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = Controller(
        tmp_path / "runs", env={"GRAVAC_TOKEN": AGENT, "GRAVAC_CONTROLLER_CONTROL_TOKEN": OPERATOR}
    )
    try:
        job = PostedJob(controller, "alpha", AGENT)
        folder = ("--data-dir", tmp_path / "runs", "--wait", "0")
        for headers in ({}, {"Authorization": f"Bearer {AGENT}"}):
            given = {"Content-Type": "application/json", "If-Match": '"0"'} | headers
            answer = controller.ask(
                "PUT", "/v1/jobs/alpha/override", b'{"action": "dense", "actor": "a"}', given
            )
            assert answer.status == 401
            assert "steering needs the control token" in answer.json["detail"]
            assert "GRAVAC_CONTROLLER_CONTROL_TOKEN" in answer.json["detail"]
        assert "control token" in run("steer", "alpha", "dense", *folder, code=1)
        monkeypatch.setenv("GRAVAC_CONTROLLER_CONTROL_TOKEN", OPERATOR)
        assert "next window" in run("steer", "alpha", "pin", 20, *folder)
        end = End(incarnation="first", windows=0, steps=0, message="")
        controller.ask("POST", "/v1/jobs/alpha/end", end, {"Authorization": f"Bearer {AGENT}"})
        assert "the job has ended" in run("steer", "alpha", "dense", *folder, code=1)
        assert "no order is in force, it has ended, and orders end with it" in run(
            "steer", "alpha", "resume", *folder
        )
        assert job.trainer.window == 0
    finally:
        controller.stop()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["alpah", "pin", "10"], 1, "no job 'alpah' (did you mean 'alpha'?)"),
        (["alpha", "pin", "0.5"], 2, "0.5 is not in the range"),
        (["alpha", "pin", "nan"], 2, "--cf: "),
        (["alpha", "pin", "ten"], 2, "'ten' is not a valid float"),
        (["alpha", "pni", "10"], 2, "'pni' is not one of 'pin', 'dense', 'pause', 'resume'"),
        (["alpha", "dense", "10"], 2, "CF 10.0 is for pin; omit it with dense"),
        (["alpha", "pause", "--codec", "topk"], 2, "--codec topk is for pin; omit it with pause"),
        (["alpha", "pin"], 2, "pin needs a compression factor: gravac steer alpha pin 25"),
        (["alpha", "pin", "10", "--codec", "a b"], 2, "--codec: String should match pattern"),
        (
            ["alpha", "pin", "10", "--codec", "nope"],
            1,
            "codec: 'nope' is none of those that this job's ranks",
        ),
        (["alpha", "dense", "--note", "x" * 301], 2, "--note: String should have at most 300 characters"),
    ],
)
def test_what_is_no_order(job: PostedJob, arguments: list[str], code: int, words: str) -> None:
    assert words in run("steer", *arguments, "--data-dir", job.controller.data_dir, code=code)


def test_no_controller(tmp_path: Path) -> None:
    said = run("steer", "alpha", "dense", "--data-dir", tmp_path, code=1)
    assert f"no controller serves {tmp_path}" in said


def test_a_pin_is_sent_by_a_codec_that_reaches_it_or_refused(tmp_path: Path) -> None:
    sizes = (
        CodecSize(codec=None, cf=3.9, up_to=1e9),
        CodecSize(codec="nearest:levels=3", cf=17.3, up_to=1e9),
    )
    policy = parse("auto:plans=nearest:levels=3").spec()
    controller = Controller(tmp_path / "runs", "--owner-may-steer")
    try:
        rounding = PostedJob(controller, "beta", policy=policy, compressor="int8", sizes=sizes)
        folder = ("--data-dir", tmp_path / "runs")
        said = run("steer", "beta", "pin", 20, *folder, code=1)
        assert "int8 sends 3.9, not 20. What can be pinned: 1 (dense), 3.9 with int8, 17.3 with" in said
        with trains_on(rounding):
            said = run("steer", "beta", "pin", 17.3, *folder)
        assert "pinned CF 17.3 with nearest:levels=3" in said
        assert "beta: the codec in force does not send 17.3x; nearest:levels=3 does." in said
        shown = controller.ask("GET", "/v1/jobs/beta").json
        assert (rounding.decision.codec, rounding.decision.cf_candidate) == ("nearest:levels=3", 17.3)
        assert shown["override"]["codec"] == "nearest:levels=3"
    finally:
        controller.stop()


def test_another_order_that_came_first(job: PostedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both wait for the same window: the newer one takes effect, and the older command says so."""
    folder, said = ("--data-dir", job.controller.data_dir), list[str]()
    monkeypatch.setenv("LOGNAME", "alice")
    thread = threading.Thread(target=lambda: said.append(run("steer", "alpha", "pin", 40, *folder)))
    thread.start()
    until = time.monotonic() + PATIENCE_SECONDS
    while job.controller.ask("GET", "/v1/jobs/alpha/override").json["waiting"] is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    monkeypatch.setenv("LOGNAME", "bob")
    run("steer", "alpha", "dense", *folder, "--wait", "0")
    job.windows(1)
    thread.join(PATIENCE_SECONDS)
    assert "bob ordered dense" in said[0]
    assert "bob has since given another order: dense" in said[0]
    with trains_on(job):
        run("steer", "alpha", "resume", *folder)
