"""Bad input: a 4xx with a problem+json that says what is wrong, never a 500, and nothing journaled."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gravac.protocol import JobAnswer
from tests.support.in_process import InProcess, post, register
from tools.harness.builders import Trainer, spec
from tools.harness.controller import Controller

JSON = {"Content-Type": "application/json"}
WINDOWS = "/v1/jobs/job/windows"


@pytest.fixture
def report(app: InProcess) -> dict[str, Any]:
    """A valid report of a registered job, as parsed JSON."""
    answer = app.client.post("/v1/jobs", content=spec().model_dump_json(), headers=JSON)
    decision = JobAnswer.model_validate_json(answer.text).decision
    found: dict[str, Any] = json.loads(Trainer().report(decision).model_dump_json())
    return found


def refused(app: InProcess, body: str | bytes, *, status: int = 422, headers: dict[str, str] = JSON) -> Any:
    lines = journal(app)
    response = app.client.post(WINDOWS, content=body, headers=headers)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert set(problem) == {"type", "title", "status", "detail", "reason", "errors"}
    assert problem["status"] == status
    assert problem["detail"]
    assert "NaN" not in response.text
    assert "Infinity" not in response.text
    assert journal(app) == lines
    return problem


def journal(app: InProcess) -> str:
    return (app.services.settings.data_dir / "job" / "journal.jsonl").read_text()


def fields(problem: Any) -> list[str]:
    return [error["field"] for error in problem["errors"]]


def test_the_report_is_fine_to_begin_with(app: InProcess, report: dict[str, Any]) -> None:
    assert app.client.post(WINDOWS, content=json.dumps(report), headers=JSON).status_code == 200


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("name", ["seconds", "loss", "cf"])
def test_not_a_finite_number(app: InProcess, report: dict[str, Any], name: str, number: str) -> None:
    body = json.dumps(report | {name: "HERE"}).replace('"HERE"', number)
    assert fields(refused(app, body)) == [name]


def test_not_a_finite_number_deep_inside(app: InProcess, report: dict[str, Any]) -> None:
    report["levels"][0]["sums"]["sent_sq"] = "HERE"
    report["ranks"][1]["phases"]["compute"] = "HERE"
    body = json.dumps(report).replace('"HERE"', "NaN")
    assert fields(refused(app, body)) == ["levels.0.sums.sent_sq", "ranks.1.phases.compute"]


@pytest.mark.parametrize("value", ["1.5", True, None, [], {}, "nan"])
def test_another_type_for_a_float(app: InProcess, report: dict[str, Any], value: object) -> None:
    assert fields(refused(app, json.dumps(report | {"seconds": value}))) == ["seconds"]


@pytest.mark.parametrize("value", [10**23, 2**53 + 1, -1, 1.5, "7", True, None])
def test_not_an_integer_in_range(app: InProcess, report: dict[str, Any], value: object) -> None:
    assert fields(refused(app, json.dumps(report | {"first_step": value}))) == ["first_step"]


def test_an_integer_of_100_000_digits(app: InProcess, report: dict[str, Any]) -> None:
    body = json.dumps(report | {"samples": "HERE"}).replace('"HERE"', "9" * 100_000)
    refused(app, body)


def test_an_unknown_field_and_a_missing_one(app: InProcess, report: dict[str, Any]) -> None:
    assert fields(refused(app, json.dumps(report | {"extra": 1}))) == ["extra"]
    del report["samples"]
    assert fields(refused(app, json.dumps(report))) == ["samples"]


@pytest.mark.parametrize(
    "body", ["", "null", "[]", '"text"', "17", "{", "{}", "{}{}", "\ufeff{}", "{'a': 1}"]
)
def test_a_body_that_is_not_a_report(app: InProcess, report: dict[str, Any], body: str) -> None:
    refused(app, body)


def test_100_000_nested_brackets(app: InProcess, report: dict[str, Any]) -> None:
    refused(app, "[" * 100_000 + "]" * 100_000)
    refused(app, '{"a":' * 40_000)


@pytest.mark.parametrize(
    "body", [b"\xff\xfe{}", b'{"job":"\xc3\x28"}', b'{"job":"\xed\xa0\x80"}', b"\x00" * 50]
)
def test_not_utf_8(app: InProcess, report: dict[str, Any], body: bytes) -> None:
    refused(app, body)


def test_a_lone_surrogate_escape(app: InProcess, report: dict[str, Any]) -> None:
    body = json.dumps(report | {"job": "HERE"}).replace('"HERE"', '"\\ud800"')
    refused(app, body)


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""]
)
def test_not_json_by_its_content_type(app: InProcess, report: dict[str, Any], kind: str | None) -> None:
    problem = refused(
        app, json.dumps(report), status=415, headers={} if kind is None else {"Content-Type": kind}
    )
    assert "application/json" in problem["detail"]


def test_a_charset_with_the_content_type_is_fine(app: InProcess, report: dict[str, Any]) -> None:
    kind = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert app.client.post(WINDOWS, content=json.dumps(report), headers=kind).status_code == 200


def test_a_large_body(app: InProcess, report: dict[str, Any]) -> None:
    cap = app.services.settings.limits.max_body_bytes
    body = json.dumps(report)
    refused(app, body + " " * (cap + 1 - len(body)), status=413)
    padded = body + " " * (cap - len(body))
    assert app.client.post(WINDOWS, content=padded, headers=JSON).status_code == 200


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"last_step": 0, "first_step": 10}, "last_step"),
        ({"nonfinite_steps": 101}, "nonfinite_steps"),
        ({"failed_steps": 101}, "failed_steps"),
        ({"last_step": 3}, "levels"),
        ({"job": "other"}, "job"),
    ],
)
def test_fields_that_contradict_each_other(
    app: InProcess, report: dict[str, Any], changes: dict[str, Any], field: str
) -> None:
    problem = refused(app, json.dumps(report | changes))
    assert fields(problem)[0] == field
    assert problem["detail"].startswith(f"{field}: ")


def test_more_plainly_dense_steps_than_steps(app: InProcess, report: dict[str, Any]) -> None:
    report["levels"][0]["sums"]["mean_steps"] = report["levels"][0]["steps"] + 1
    assert fields(refused(app, json.dumps(report))) == ["levels.0.sums.mean_steps"]


def test_ranks_that_cannot_be(app: InProcess, report: dict[str, Any]) -> None:
    report["ranks"][1]["rank"] = 2
    assert fields(refused(app, json.dumps(report))) == ["ranks.1.rank"]
    report["ranks"][1]["rank"] = 0
    assert fields(refused(app, json.dumps(report))) == ["ranks.1.rank"]
    report["ranks"][1] |= {"rank": 1, "steps": 51}
    assert fields(refused(app, json.dumps(report))) == ["ranks.1.steps"]


@pytest.mark.parametrize("name", ["a b", "a/b", "", "x" * 65, "a\nb", "<script>", "é", "a\u0000", "\x1b[31m"])
def test_job_names_outside_the_charset(app: InProcess, name: str) -> None:
    body = json.dumps(json.loads(spec().model_dump_json()) | {"job": name})
    response = app.client.post("/v1/jobs", content=body, headers=JSON)
    assert response.status_code == 422
    assert fields(response.json()) == ["job"]


@pytest.mark.parametrize("name", [".", "..", ".hidden", "..."])
def test_job_names_that_are_special_to_a_file_system(app: InProcess, name: str) -> None:
    body = json.dumps(json.loads(spec().model_dump_json()) | {"job": name})
    response = app.client.post("/v1/jobs", content=body, headers=JSON)
    assert response.status_code == 422
    assert fields(response.json()) == ["job"]
    assert [path.name for path in app.services.settings.data_dir.iterdir()] == [".controller.lock"]


def test_a_policy_that_does_not_exist(app: InProcess) -> None:
    wrong = spec().model_dump(mode="json")
    wrong["policy"] = {"name": "oracle", "settings": {}}
    response = app.client.post("/v1/jobs", content=json.dumps(wrong), headers=JSON)
    assert response.status_code == 422
    assert "oracle" in response.json()["detail"]
    wrong["policy"] = {"name": "gravac", "settings": {"epsilon": 7}}
    response = app.client.post("/v1/jobs", content=json.dumps(wrong), headers=JSON)
    assert response.status_code == 422
    assert "epsilon" in response.json()["detail"]


def test_an_invalid_policy_state(app: InProcess) -> None:
    wrong = spec(policy_state='{"decision": 1}')
    response = app.client.post("/v1/jobs", content=wrong.model_dump_json(), headers=JSON)
    assert response.status_code == 422
    assert "policy_state" in response.json()["detail"]


@pytest.mark.parametrize(
    "route", ["", "/windows", "/decisions", "/candidates", "/ranks", "/events", "/trace"]
)
def test_an_unknown_job(app: InProcess, route: str) -> None:
    response = app.client.get(f"/v1/jobs/nobody{route}")
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    assert "no such job" in response.json()["detail"]


@pytest.mark.parametrize("route", ["windows", "events", "end"])
def test_posting_to_an_unknown_job(app: InProcess, report: dict[str, Any], route: str) -> None:
    bodies = {
        "windows": json.dumps(report | {"job": "nobody"}),
        "events": '{"kind":"note","window":null,"message":"x"}',
        "end": '{"incarnation":"first","windows":0,"steps":0,"message":""}',
    }
    response = app.client.post(f"/v1/jobs/nobody/{route}", content=bodies[route], headers=JSON)
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


def extreme(
    report: dict[str, Any], window: int, *, energy: float, seconds: float, count: int, size: int
) -> str:
    """The report with every number at one of its bounds."""
    names = report["levels"][0]["sums"]
    sums = {name: count if name.endswith("steps") else energy for name in names}
    median = seconds if count else None
    level = {
        "epoch": 0, "cf": 1.0, "steps": count, "settled_steps": count, "step_seconds_median": median,
        "exposed_seconds_median": median, "dense_bytes": size, "payload_bytes": size, "sums": sums,
    }  # fmt: skip
    phases = dict.fromkeys(report["phases"], seconds)
    row = report["ranks"][0] | {
        "steps": count, "step_seconds": seconds, "phases": phases, "samples": count, "memory_bytes": size,
    }  # fmt: skip
    return json.dumps(
        report
        | {
            "window": window, "first_step": 0, "last_step": max(0, count - 1), "seconds": seconds, "samples": count,
            "dense_bytes": size, "payload_bytes": size, "loss": energy, "levels": [level], "phases": phases,
            "ranks": [row], "gains": [{"cf": 1e9, "gain": 1.0}],
        }
    )  # fmt: skip


@pytest.mark.parametrize("seconds", [0.0, 5e-324, 1e9])
@pytest.mark.parametrize("energy", [0.0, 5e-324, 1e300])
def test_numbers_at_their_bounds_never_break_an_answer(
    app: InProcess, report: dict[str, Any], energy: float, seconds: float
) -> None:
    """Ratios overflow and sums grow beyond the bounds of one report; every answer stays finite JSON."""
    for window, (count, size) in enumerate([(2**53, 2**63), (2**53, 0), (2**53, 2**63), (0, 2**63), (0, 0)]):
        body = extreme(report, window, energy=energy, seconds=seconds, count=count, size=size)
        response = app.client.post(WINDOWS, content=body, headers=JSON)
        assert response.status_code == 200, response.text
        for route in ("", "/windows", "/decisions", "/candidates", "/ranks"):
            answer = app.client.get(f"/v1/jobs/job{route}")
            assert answer.status_code == 200, answer.text
            assert not {"NaN", "Infinity"} & set(answer.text.replace(":", ",").split(","))
        assert app.client.get("/metrics").status_code == 200


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1e999"])
@pytest.mark.parametrize("where", ["settings", "policy"])
def test_settings_hold_only_finite_numbers(app: InProcess, number: str, where: str) -> None:
    """``JsonValue`` accepts any float and writes null for what is not JSON."""
    body = json.loads(spec().model_dump_json())
    place = body if where == "settings" else body["policy"]
    place["settings"] = {"fine": 1.5, "deep": [{"inside": "HERE"}]}
    response = app.client.post("/v1/jobs", content=json.dumps(body).replace('"HERE"', number), headers=JSON)
    assert response.status_code == 422, response.text
    field = "settings" if where == "settings" else "policy.settings"
    assert fields(response.json()) == [field]
    assert "'deep'" in response.json()["detail"]
    assert not (app.services.settings.data_dir / "job").exists()


@pytest.mark.parametrize("first", [2**52 + 1, 2**53 - 1, 2**53])
def test_a_first_window_near_the_largest_number(app: InProcess, first: int) -> None:
    response = app.client.post("/v1/jobs", content=spec(first_window=first).model_dump_json(), headers=JSON)
    assert response.status_code == 422, response.text
    assert fields(response.json()) == ["first_window"]


def test_a_known_job_keeps_its_windows_when_a_huge_one_is_refused(
    app: InProcess, report: dict[str, Any]
) -> None:
    """By registration, and by a report of a window far ahead."""
    refused(app, json.dumps(report | {"window": 2**53}))
    body = spec(first_window=2**53).model_dump_json()
    assert app.client.post("/v1/jobs", content=body, headers=JSON).status_code == 422
    assert app.client.post(WINDOWS, content=json.dumps(report), headers=JSON).status_code == 200


def test_the_largest_first_window_works(app: InProcess) -> None:
    decision = register(app, first_window=2**52).decision
    post(app, WINDOWS, Trainer().report(decision, window=2**52))
    assert app.client.get("/v1/jobs").json()["items"][0]["windows"] == 1


def huge(state: Any, at: str, value: object) -> str:
    found = json.loads(state)
    *way, last = at.split(".")
    node = found
    for key in way:
        node = node[key]
    node[last] = value
    return json.dumps(found)


@pytest.mark.parametrize("at", ["decision.epoch", "decision.window"])
def test_a_policy_state_with_huge_counters(app: InProcess, at: str) -> None:
    answer = register(app)
    state = huge(answer.policy_state, at, 2**53)
    body = spec("other", policy_state=state).model_dump_json()
    response = app.client.post("/v1/jobs", content=body, headers=JSON)
    assert response.status_code == 422, response.text
    assert fields(response.json()) == ["policy_state"]


def test_a_job_that_holds_a_poisoned_state_answers_409(
    app: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal of an older controller may hold one: the state was not checked then."""
    monkeypatch.setattr("gravac_controller.jobs.checks.LARGEST_COUNTER", 2**53)
    state = huge(register(app).policy_state, "decision.epoch", 2**53)
    decision = register(app, job="other", policy_state=state, first_window=2**53).decision
    report = Trainer("other").report(decision, window=2**53)
    post(app, "/v1/jobs/other/windows", report)
    problem = json.loads(post(app, "/v1/jobs", spec("other", first_window=2**53), status=409))
    assert problem["reason"] == "undecidable"
    assert "use another job name" in problem["detail"]


def test_a_note_reaches_the_log_escaped(start: Callable[..., Controller]) -> None:
    token = "an-operators-token-0123456789abc"
    controller = start(env={"GRAVAC_CONTROLLER_CONTROL_TOKEN": token})
    controller.ask("POST", "/v1/jobs", spec())
    note = "\x1b]0;owned\x07\nERROR forged"
    order = json.dumps({"action": "pin", "cf": 10.0, "actor": "alice", "note": note})
    headers = {"If-Match": '"0"', "Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    assert controller.ask("PUT", "/v1/jobs/job/override", order, headers).status == 202
    controller.stop()
    log = controller.log.read_text()
    (line,) = (line for line in log.splitlines() if "owned" in line)
    assert line.isprintable()
    assert "\\x1b]0;owned\\x07\\nERROR forged" in line
