"""Two tokens, three roles: reading, reporting, steering. Beyond loopback only /healthz answers without a token."""

import base64
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from gravac_controller.settings import ControllerSettings
from tests.support.in_process import InProcess
from tools.harness.builders import spec

AGENT = "an-agents-token-0123456789abcdef"
OPERATOR = "an-operators-token-0123456789abc"
SPEC = spec().model_dump(mode="json")
LOOKING = (
    "/", "/openapi.json", "/readyz", "/metrics", "/v1/jobs", "/v1/jobs/job",
    "/v1/jobs/job/windows", "/v1/jobs/job/decisions", "/v1/jobs/job/candidates", "/v1/jobs/job/ranks",
    "/v1/jobs/job/trace", "/static/main.js", "/nowhere",
)  # fmt: skip


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def basic(password: str, user: str = "anybody") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.fixture
def beyond(open_app: Callable[..., InProcess]) -> InProcess:
    """A controller with a job, as reachable from other machines."""
    app = open_app(host="0.0.0.0", token=AGENT, control_token=OPERATOR)
    assert app.client.post("/v1/jobs", json=SPEC, headers=bearer(AGENT)).status_code == 200
    return app


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_beyond_loopback_nothing_but_healthz_answers(beyond: InProcess, method: str) -> None:
    for path in (*LOOKING, "/v1/jobs/job/events"):
        answer = beyond.client.request(method, path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"].startswith("Basic realm=")
    assert beyond.client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        bearer(AGENT + "x"), bearer(AGENT[:-1]), bearer(""), basic(AGENT.upper()), basic(""), {"Authorization": AGENT},
        {"Authorization": "Basic " + AGENT}, {"Authorization": "Basic é"}, {"Authorization": "Basic YTpi"},
        {"Authorization": f"Digest {AGENT}"}, {"Cookie": f"token={AGENT}"},
    ],
)  # fmt: skip
def test_wrong_tokens_allow_nothing(beyond: InProcess, headers: dict[str, str]) -> None:
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    for path in LOOKING:
        assert beyond.client.get(path, headers=encoded).status_code == 401, path  # type: ignore[arg-type]
    answer = beyond.client.post("/v1/jobs", json=SPEC, headers=encoded)  # type: ignore[arg-type]
    assert answer.status_code == 401
    assert AGENT not in answer.text


@pytest.mark.parametrize(
    "headers", [bearer(AGENT), bearer(OPERATOR), basic(AGENT), basic(OPERATOR), basic(AGENT, "é")]
)
def test_each_token_allows_reading(beyond: InProcess, headers: dict[str, str]) -> None:
    for path in LOOKING:
        assert beyond.client.get(path, headers=headers).status_code == (404 if path == "/nowhere" else 200), (
            path
        )


def test_what_a_browser_sends_by_itself_changes_nothing(beyond: InProcess) -> None:
    for token in (AGENT, OPERATOR):
        answer = beyond.client.post("/v1/jobs", json=SPEC, headers=basic(token))
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"  # no dialog: it would not help
        cross = basic(token) | {"Sec-Fetch-Site": "cross-site"}
        assert beyond.client.post("/v1/jobs", json=SPEC, headers=cross).status_code == 403


def test_reading_on_loopback_needs_no_token_by_default(open_app: Callable[..., InProcess]) -> None:
    app = open_app(token=AGENT)
    assert app.client.get("/v1/jobs").status_code == 200
    assert app.client.post("/v1/jobs", json=SPEC).status_code == 401
    app.close()
    app = open_app(token=AGENT, look_needs_token=True)
    assert app.client.get("/v1/jobs").status_code == 401
    assert app.client.get("/v1/jobs", headers=bearer(AGENT)).status_code == 200


def test_reading_beyond_loopback_can_be_opened(open_app: Callable[..., InProcess]) -> None:
    app = open_app(host="0.0.0.0", token=AGENT, look_needs_token=False)
    assert app.client.get("/v1/jobs").status_code == 200
    assert app.client.post("/v1/jobs", json=SPEC).status_code == 401


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"token": AGENT, "control_token": AGENT}, "must differ from GRAVAC_TOKEN"),
        ({"control_token": "short"}, "at least 16"),
        ({"control_token": "with a space in the middle"}, "without spaces"),
        ({"look_needs_token": True}, "needs GRAVAC_TOKEN"),
    ],
)
def test_tokens_that_cannot_work(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words) as caught:
        ControllerSettings(**given)
    assert "a space in the middle" not in str(caught.value.errors(include_input=False))
