"""The Python client against a real controller: every method, every kind of failure."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from gravac.protocol import End, JobAnswer, WindowAnswer
from gravac.replays.replay import check
from gravac_controller.client import (
    Client,
    ControllerError,
    NoController,
    NotAController,
    OverrideState,
    Refused,
    running_controllers,
)
from gravac_controller.views.models import EndView, Snapshot, WindowDelta
from tests.support.peer import INVALID_ANSWERS, SPEC, Handler, serving
from tools.harness.builders import Trainer, spec
from tools.harness.controller import Controller

pytestmark = pytest.mark.distributed

AGENT = "an-agents-token-0123456789abcdef"
OPERATOR = "an-operators-token-0123456789abc"
BEARER = {"Authorization": f"Bearer {AGENT}"}
WINDOWS = 12


def feed(controller: Controller, trainer: Trainer, windows: int) -> None:
    answer = controller.ask("POST", "/v1/jobs", spec(trainer.job), BEARER)
    decision = JobAnswer.model_validate_json(answer.body).decision
    for _ in range(windows):
        path = f"/v1/jobs/{trainer.job}/windows"
        answer = controller.ask("POST", path, trainer.report(decision), BEARER)
        decision = WindowAnswer.model_validate_json(answer.body).decision


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """A controller with tokens and control, a running job and one that ended."""
    env = {
        "GRAVAC_TOKEN": AGENT,
        "GRAVAC_CONTROLLER_CONTROL_TOKEN": OPERATOR,
        "GRAVAC_CONTROLLER_LOOK_NEEDS_TOKEN": "true",
    }
    running_one = Controller(
        tmp_path_factory.mktemp("client") / "runs", env=env, limits={"stream_interval_seconds": 0.0}
    )
    feed(running_one, Trainer("alpha"), WINDOWS)
    feed(running_one, Trainer("beta"), 1)
    end = End(incarnation="first", windows=1, steps=50, message="done")
    running_one.ask("POST", "/v1/jobs/beta/end", end, BEARER)
    yield running_one
    running_one.stop()


@pytest.fixture
def client(controller: Controller) -> Iterator[Client]:
    with Client(controller.url, OPERATOR) as opened:
        yield opened


def test_reading(client: Client, controller: Controller) -> None:
    assert client.health().instance == controller.announced["instance"]
    ours = {"alpha", "beta"}  # other tests have jobs of their own
    assert ours <= {job.job for job in client.jobs()}
    assert ours & {job.job for job in client.jobs(state="ended")} == {"beta"}
    assert client.unreadable() == ()
    job = client.job("alpha")
    assert job.windows == WINDOWS
    assert client.candidates("alpha").epoch == job.epoch
    assert [view.row.rank for view in client.ranks("alpha").ranks] == [0, 1]
    assert [view.report.window for view in client.windows("alpha")] == list(range(WINDOWS))
    assert [view.report.window for view in client.windows("alpha", after=3, to_step=399)] == [4, 5, 6, 7]
    changed = list(client.decisions("alpha", changed=True))
    assert all(view.changed for view in changed)
    assert changed[-1].decision.epoch == job.epoch
    assert {view.decision.phase for view in client.decisions("alpha", phase="hold")} == {"hold"}
    assert {view.decision.rule for view in client.decisions("alpha", rule="warmup")} == {"warmup"}


def test_pages_are_joined(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from gravac_controller.client.client import REMEMBERED

    asked: list[str] = []
    real = client._connection.ask

    def ask(method: str, path: str, *rest: object) -> object:
        asked.append(path)
        return real(method, path.replace("limit=500", "limit=5"), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(client._connection, "ask", ask)
    assert [view.report.window for view in client.windows("alpha")] == list(range(WINDOWS))
    assert len(asked) == 3
    assert REMEMBERED > 0


def test_unchanged_answers_are_not_sent_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int] = []
    real = client._connection.ask

    def ask(*arguments: object) -> object:
        answer = real(*arguments)  # type: ignore[arg-type]
        statuses.append(answer.status)
        return answer

    monkeypatch.setattr(client._connection, "ask", ask)
    assert client.job("beta") == client.job("beta")
    assert statuses == [200, 304]


def test_the_whole_trace_is_saved(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    assert client.trace("alpha", file) == file.stat().st_size
    assert check(file).ok


def test_steering(controller: Controller, client: Client) -> None:
    trainer = Trainer("gamma")
    feed(controller, trainer, 2)
    seen = client.override("gamma")
    assert (seen.view.control_enabled, seen.view.in_force) == (True, None)
    after = client.order("gamma", "pin", cf=25.0, actor="alice", note="a test", current=seen)
    assert after.view.waiting is not None
    assert after.view.waiting.cf == 25.0
    with pytest.raises(Refused, match="412 Precondition Failed: the epoch is now") as caught:
        client.order("gamma", "dense", actor="bob", current=seen)
    assert caught.value.status == 412
    client.order("gamma", "resume", actor="bob", current=after)
    with pytest.raises(ValidationError):
        client.order("gamma", "pin", actor="alice", current=after)
    with Client(controller.url, AGENT) as agent, pytest.raises(Refused, match="401"):
        agent.order("gamma", "dense", actor="alice", current=agent.override("gamma"))


def test_events_as_they_happen_and_resumed(controller: Controller, client: Client) -> None:
    trainer = Trainer("delta")
    feed(controller, trainer, 2)
    stream = client.events("delta")
    first = next(stream)
    assert (first.kind, type(first.data)) == ("snapshot", Snapshot)
    feed(controller, trainer, 1)
    second = next(stream)
    while not isinstance(second.data, WindowDelta):
        second = next(stream)
    assert second.data.window.report.window == 2
    stream.close()
    end = End(incarnation="first", windows=3, steps=150, message="done")
    controller.ask("POST", "/v1/jobs/delta/end", end, BEARER)
    again = client.events("delta", after=second.id)
    third = next(again)
    assert isinstance(third.data, EndView)
    again.close()


def test_refusals_say_why(controller: Controller, client: Client) -> None:
    with pytest.raises(Refused, match="404 Not Found: no such job") as caught:
        client.job("nobody")
    assert caught.value.problem.status == 404
    with pytest.raises(Refused, match="404"):
        next(client.events("nobody"))
    with (
        Client(controller.url) as stranger,
        pytest.raises(Refused, match=r"401.*needs the controller's token"),
    ):
        list(stranger.jobs())


def test_no_controller() -> None:
    with Client("127.0.0.1:1") as nobody, pytest.raises(NoController, match=r"at http://127.0.0.1:1 \("):
        nobody.health()


def test_other_programs_and_closed_connections() -> None:
    def elsewhere(handler: Handler, body: bytes) -> None:
        status, text = (500, "oh") if handler.path == "/v1/jobs/broken" else (200, '{"hello": 1}')
        handler.answer(text, status)
        handler.close_connection = handler.path == "/healthz"  # without having said so

    with serving(SPEC, None) as peer, Client(f"{peer.url}/some/page") as client:
        peer.invalid = elsewhere
        for _ in range(3):
            with pytest.raises(NotAController, match="not a gravac controller"):
                client.health()
        with pytest.raises(NotAController, match="answered 500: oh"):
            client.job("broken")
        peer.invalid = INVALID_ANSWERS["head without body"]
        with pytest.raises(NoController, match="IncompleteRead"):
            client.job("broken")


def test_a_token_is_sent_only_to_a_controller_that_knows_it(start: Callable[..., Controller]) -> None:
    """0.1 sent it to a program on a dead controller's port that repeated the public ``instance``."""
    dead = start("--job", "one", env={"GRAVAC_TOKEN": AGENT})
    answers = {
        "/healthz": {"status": "ok", "instance": dead.announced["instance"]},
        "/v1/jobs": {"items": [], "next": None},
    }
    dead.kill()
    with serving(SPEC, OPERATOR, dead.port) as peer:  # its proofs are of another token
        peer.invalid = lambda handler, body: handler.answer(json.dumps(answers.get(handler.path, {})))
        (client,) = running_controllers(dead.data_dir, AGENT)
        with client:
            assert list(client.jobs()) == []
            assert list(client.events("one")) == []
            with pytest.raises(ControllerError):
                client.order("one", "dense", actor="alice", current=OverrideState(view=None, tag="0"))  # type: ignore[arg-type]
        requests = [line for _, line in peer.requests]
    assert sum("/v1/proof" in line for line in requests) >= 2  # on each new connection
    assert any(line.startswith("PUT") for line in requests)
    assert AGENT.encode() not in peer.received
    assert b"uthorization" not in peer.received


def test_a_token_that_the_controller_does_not_know_is_not_sent_and_the_error_says_so(
    controller: Controller,
) -> None:
    with (
        Client(controller.url, "another-token-0123456789abcdef") as client,
        pytest.raises(Refused, match=r"401.*your token was not sent"),
    ):
        list(client.jobs())
