"""Steering over HTTP: off by default, for operators only, bound to the epoch they saw, journaled with the actor."""

import json
import logging
import os
from collections.abc import Callable
from typing import Any

import pytest

from gravac.policies import parse
from gravac.protocol import CodecSize, Decision, End
from gravac.replays.replay import check
from tests.support.in_process import InProcess, journal, post, register, run
from tools.harness.builders import Trainer, spec

AGENT = "an-agents-token-0123456789abcdef"
OPERATOR = "an-operators-token-0123456789abc"
URL = "/v1/jobs/job/override"


@pytest.fixture
def steered(open_app: Callable[..., InProcess]) -> InProcess:
    """An application with control on; agents need no token."""
    return open_app(control_token=OPERATOR)


def put(app: InProcess, seen: object, action: str = "dense", *, token: str = OPERATOR, **more: Any) -> Any:
    headers = {"Authorization": f"Bearer {token}"} | ({} if seen is None else {"If-Match": f'"{seen}"'})
    return app.client.put(URL, json={"action": action, "actor": "alice"} | more, headers=headers)


def is_problem(response: Any, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    return str(response.json()["detail"])


def view(app: InProcess) -> Any:
    return app.client.get("/v1/jobs/job").json()


def test_an_order_from_start_to_end(steered: InProcess, caplog: pytest.LogCaptureFixture) -> None:
    decision = run(steered, trainer := Trainer(), register(steered).decision, 3)
    before = steered.client.get(URL)
    assert before.headers["etag"] == f'"{decision.epoch}"'
    assert before.json() == {
        "job": "job", "epoch": decision.epoch, "control_enabled": True, "in_force": None, "waiting": None,
    }  # fmt: skip
    with caplog.at_level(logging.WARNING, "gravac.controller"):
        response = put(steered, decision.epoch, "pin", cf=33.5, note="a test")
    assert response.status_code == 202, response.text
    given = {
        "action": "pin",
        "cf": 33.5,
        "actor": "alice",
        "note": "a test",
        "epoch": decision.epoch,
        "codec": None,
    }
    assert response.json()["waiting"] == given
    assert response.headers["etag"] == f'"{decision.epoch}+1"'
    assert "alice pinned CF 33.5" in caplog.text
    assert view(steered)["override_waiting"] == given
    assert view(steered)["decision"] == json.loads(decision.model_dump_json())
    assert view(steered)["events"][-1]["event"]["kind"] == "override"
    assert "alice pinned CF 33.5" in view(steered)["events"][-1]["event"]["message"]

    pinned = run(steered, trainer, decision, 1)
    assert (pinned.cf_candidate, pinned.rule, pinned.epoch) == (33.5, "pinned", decision.epoch + 1)
    assert "alice" in pinned.reason
    assert (view(steered)["override"], view(steered)["override_waiting"]) == (given, None)
    now = steered.client.get(URL)
    assert (now.headers["etag"], now.json()["in_force"]) == (f'"{pinned.epoch}"', given)
    assert b'codec="topk",job_name="job",reason="pinned"} 1.0' in steered.client.get("/metrics").content

    assert put(steered, pinned.epoch, "resume").status_code == 202
    resumed = run(steered, trainer, pinned, 1)
    assert (resumed.rule, resumed.phase) == ("resumed", decision.phase)
    assert view(steered)["override"] is None
    run(steered, trainer, resumed, 2)
    assert journal(steered).count("override") == 2
    found = check(steered.services.settings.data_dir / "job" / "journal.jsonl")
    assert found.ok, found.differences


def test_control_is_off_by_default(app: InProcess) -> None:
    register(app)
    detail = is_problem(put(app, 0), 403)
    assert detail.startswith("to steer, start the training with GRAVAC_STEERING=owner")
    assert "control-token-file" in detail
    assert app.client.get(URL).json()["control_enabled"] is False
    assert view(app)["control_enabled"] is False
    assert "override" not in journal(app)


def test_only_operators_may_steer(open_app: Callable[..., InProcess]) -> None:
    app = open_app(token=AGENT, control_token=OPERATOR)
    allowed = {"Authorization": f"Bearer {AGENT}"}
    assert (
        app.client.post("/v1/jobs", json=spec().model_dump(mode="json"), headers=allowed).status_code == 200
    )
    for token in (AGENT, OPERATOR + "x", ""):
        is_problem(put(app, 0, token=token), 401)
    answer = app.client.put(
        URL, json={"action": "dense", "actor": "alice"}, headers={"If-Match": '"0"'}, auth=("any", OPERATOR)
    )
    is_problem(answer, 401)
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "override" not in journal(app)
    assert put(app, 0).status_code == 202


@pytest.mark.parametrize("site", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_pages_of_other_sites_cannot_steer(steered: InProcess, site: dict[str, str]) -> None:
    register(steered)
    body = {"action": "dense", "actor": "alice"}
    detail = is_problem(steered.client.put(URL, json=body, headers={"If-Match": '"0"'} | site), 403)
    assert detail.startswith("send it from a page of this controller, or with Authorization: Bearer TOKEN")
    is_problem(steered.client.put(URL, json=body, headers={"If-Match": '"0"'}), 401)


def test_an_order_names_the_epoch_it_is_about(steered: InProcess) -> None:
    decision = run(steered, Trainer(), register(steered).decision, 2)
    assert "If-Match" in is_problem(put(steered, None), 428)
    for seen in ("", "*"):
        is_problem(put(steered, seen), 428)
    for seen in (decision.epoch + 1, "nonsense", f"{decision.epoch}+1"):
        response = put(steered, seen)
        assert "the epoch is now" in is_problem(response, 412)
        assert response.headers["etag"] == f'"{decision.epoch}"'
    assert put(steered, decision.epoch).status_code == 202
    is_problem(put(steered, decision.epoch), 412)  # somebody else's order came in between
    assert put(steered, f"{decision.epoch}+1", "pin", cf=20.0).status_code == 202
    assert journal(steered).count("override") == 2


def test_a_codec_that_no_rank_has_built_is_refused(steered: InProcess) -> None:
    """The agents would take such a decision for no answer, and go dense."""
    decision = register(steered).decision
    refused = put(steered, decision.epoch, "pin", cf=20.0, codec="qsgd")
    assert "codec: 'qsgd' is none of those that this job's ranks can send with: topk" in is_problem(
        refused, 422
    )
    assert put(steered, decision.epoch, "pin", cf=20.0, codec="topk").status_code == 202


SIZES = (
    CodecSize(codec=None, cf=3.9, up_to=1e9),
    CodecSize(codec="nearest:levels=3", cf=17.3, up_to=1e9),
    CodecSize(codec="nearest:levels=39", cf=5.7, up_to=1e9),
)


def test_a_pin_that_no_codec_can_send_is_refused_with_what_could_be_pinned(steered: InProcess) -> None:
    policy = parse("auto:plans=nearest:levels=3/nearest:levels=39").spec()
    decision = register(steered, policy=policy, compressor="int8", sizes=SIZES).decision
    detail = is_problem(put(steered, decision.epoch, "pin", cf=20.0), 422)
    assert "int8 sends 3.9, not 20. What can be pinned: 1 (dense), 3.9 with int8" in detail
    assert "17.3 with nearest:levels=3, 5.7 with nearest:levels=39" in detail
    assert "any with" not in detail
    named = is_problem(put(steered, decision.epoch, "pin", cf=5.7, codec="nearest:levels=3"), 422)
    assert "nearest:levels=3 sends 17.3, not 5.7" in named
    assert "override" not in journal(steered)
    answer = put(steered, decision.epoch, "pin", cf=17.3)
    assert answer.status_code == 202
    assert answer.json()["waiting"]["codec"] == "nearest:levels=3"  # the plan that has this size, said
    pinned = run(steered, Trainer(), decision, 1)
    assert (pinned.codec, pinned.cf_candidate) == ("nearest:levels=3", 17.3)
    assert "pinned CF 17.3 with nearest:levels=3" in pinned.reason


def test_where_another_codec_takes_any_cf_it_sends_the_pin(steered: InProcess) -> None:
    policy = parse("auto:plans=nearest:levels=39").spec()
    decision = register(steered, policy=policy, sizes=SIZES[2:]).decision  # topk takes any
    trainer = Trainer()
    assert put(steered, decision.epoch, "pin", cf=5.7, codec="nearest:levels=39").status_code == 202
    decision = run(steered, trainer, decision, 1)
    assert (decision.codec, decision.cf_candidate) == ("nearest:levels=39", 5.7)
    answer = put(steered, decision.epoch, "pin", cf=20.0)
    assert answer.json()["waiting"]["codec"] == "topk"
    decision = run(steered, trainer, decision, 1)
    assert (decision.codec, decision.cf_candidate) == (None, 20.0)


@pytest.mark.parametrize(
    "body",
    [
        {"action": "pin"},
        {"action": "dense", "codec": "topk"},
        {"action": "pin", "cf": 10.0, "codec": "a b"},
        {"action": "dense", "cf": 10.0},
        {"action": "pin", "cf": 0.0},
        {"action": "pin", "cf": "10"},
        {"action": "explode"},
        {"action": "dense", "actor": "<script>"},
        {"action": "dense", "epoch": 0},
        {"action": "dense", "note": "x" * 301},
        {},
        [],
    ],
)
def test_invalid_orders(steered: InProcess, body: Any) -> None:
    register(steered)
    headers = {"Authorization": f"Bearer {OPERATOR}", "If-Match": '"0"'}
    given = {"actor": "alice"} | body if isinstance(body, dict) and body else body
    is_problem(steered.client.put(URL, json=given, headers=headers), 422)
    assert "override" not in journal(steered)


def test_other_refusals(steered: InProcess) -> None:
    register(steered)
    headers = {"Authorization": f"Bearer {OPERATOR}", "If-Match": '"0"'}
    is_problem(steered.client.put(URL, content=b"{}", headers=headers), 415)
    order = {"action": "dense", "actor": "alice"}
    is_problem(steered.client.put("/v1/jobs/nobody/override", json=order, headers=headers), 404)
    assert put(steered, 0, "resume").status_code == 202  # nothing to resume: nothing happens
    assert "override" not in journal(steered)
    post(steered, "/v1/jobs/job/end", End(incarnation="first", windows=0, steps=0, message=""))
    assert "ended" in is_problem(put(steered, 0), 409)


def test_agents_cannot_forge_orders(steered: InProcess) -> None:
    register(steered)
    for kind in ("override", "gap", "registered", "restarted"):
        forged = {"kind": kind, "window": None, "message": "alice pinned CF 1000"}
        assert steered.client.post("/v1/jobs/job/events", json=forged).status_code == 422


def test_orders_survive_a_restart(open_app: Callable[..., InProcess]) -> None:
    app = open_app(control_token=OPERATOR)
    decision: Decision = run(app, trainer := Trainer(), register(app).decision, 2)
    assert put(app, decision.epoch, "pin", cf=25.0).status_code == 202
    app.close()
    app = open_app(control_token=OPERATOR)
    assert app.client.get(URL).headers["etag"] == f'"{decision.epoch}+1"'
    pinned = run(app, trainer, decision, 1)
    assert pinned.cf_candidate == 25.0
    app.close()
    app = open_app(control_token=OPERATOR)
    assert view(app)["override"]["cf"] == 25.0
    assert run(app, trainer, pinned, 1).rule == "pinned"


def test_a_full_disk_refuses_orders(steered: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    register(steered)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert "No space left" in is_problem(put(steered, 0), 503)
    decision = run(steered, Trainer(), register(steered).decision, 1)
    assert decision.rule == "warmup"
    assert "override" not in journal(steered)


def test_an_order_ends_with_its_start_of_the_trainer(steered: InProcess) -> None:
    decision = run(steered, trainer := Trainer(), register(steered).decision, 3)
    assert put(steered, decision.epoch, "dense", note="odd").status_code == 202
    dense = run(steered, trainer, decision, 1)
    assert dense.cf_candidate == 1.0
    post(steered, "/v1/jobs/job/end", End(incarnation="first", windows=4, steps=200, message=""))
    assert view(steered)["override"] is None
    answer = put(steered, dense.epoch, "resume")  # nothing to resume: the order ended with the job
    assert answer.status_code == 202
    assert (answer.json()["in_force"], answer.json()["waiting"]) == (None, None)
    again = register(steered, incarnation="second")
    assert "The order of alice (dense, because: odd) ended with the start" in again.note
    assert (again.decision.rule, again.decision.epoch) == ("resumed", dense.epoch + 1)
    assert again.decision.cf_candidate == decision.cf_candidate
    assert again.decision.phase == decision.phase
    assert again.note in view(steered)["events"][-1]["event"]["message"]
    trainer.incarnation = "second"
    assert run(steered, trainer, again.decision, 2).rule != "pinned"
    found = check(steered.services.settings.data_dir / "job" / "journal.jsonl")
    assert found.ok, found.differences
    assert register(steered, incarnation="third").note == ""
