"""Posted windows bypass FastAPI's router, and get the same answers as through it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from gravac.protocol import JobAnswer
from tests.support.in_process import InProcess
from tools.harness.builders import Trainer, spec

JSON = {"Content-Type": "application/json"}
WINDOWS = "/v1/jobs/job/windows"

REQUESTS: dict[str, Callable[[bytes], dict[str, Any]]] = {
    "a window": lambda body: {"content": body, "headers": JSON},
    "with a query": lambda body: {"content": body, "headers": JSON, "params": {"limit": "x"}},
    "job unknown": lambda body: {
        "url": "/v1/jobs/other/windows",
        "content": body.replace(b'"job":"job"', b'"job":"other"'),
        "headers": JSON,
    },
    "job of another name": lambda body: {"url": "/v1/jobs/other/windows", "content": body, "headers": JSON},
    "no name": lambda body: {"url": "/v1/jobs/a%20b/windows", "content": body, "headers": JSON},
    "line end in the name": lambda body: {"url": "/v1/jobs/job%0A/windows", "content": body, "headers": JSON},
    "slash at the end": lambda body: {"url": f"{WINDOWS}/", "content": body, "headers": JSON},
    "not JSON": lambda body: {"content": body, "headers": {"Content-Type": "text/plain"}},
    "torn": lambda body: {"content": body[:-1], "headers": JSON},
    "too large": lambda body: {"content": body + b" " * 2_000_000, "headers": JSON},
    "another method": lambda body: {"method": "PUT", "content": body, "headers": JSON},
    "reading": lambda body: {"method": "GET"},
}


def started(data_dir: Path) -> tuple[InProcess, bytes]:
    """Return an application with a job, and the job's first window."""
    app = InProcess(data_dir)
    answer = app.client.post("/v1/jobs", content=spec().model_dump_json(), headers=JSON)
    decision = JobAnswer.model_validate_json(answer.text).decision
    return app, Trainer().report(decision).model_dump_json().encode()


def counters(app: InProcess) -> list[tuple[str, dict[str, str], float]]:
    """Return the counted requests and refusals."""
    return [
        (sample.name, sample.labels, sample.value)
        for family in app.services.metrics.registry.collect()
        if family.type == "counter" and family.name.startswith("gravac_")
        for sample in family.samples
    ]


@pytest.mark.parametrize("what", REQUESTS)
def test_both_ways_give_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    seen = []
    for way in ("direct", "routed"):
        if way == "routed":
            monkeypatch.setattr("gravac_controller.api.app.DirectWindows", lambda app, *_: app)
        app, body = started(tmp_path / way)
        answer = app.client.request(**{"method": "POST", "url": WINDOWS} | REQUESTS[what](body))
        counts = counters(app)
        seen.append((answer.status_code, dict(answer.headers), answer.text, counts))
        app.close()
    assert seen[0] == seen[1]


def test_windows_bypass_the_framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, body = started(tmp_path)

    def called(*_: object) -> None:
        raise AssertionError("FastAPI was called")

    monkeypatch.setattr(FastAPI, "__call__", called)
    assert app.client.post(WINDOWS, content=body, headers=JSON).status_code == 200
    app.close()
