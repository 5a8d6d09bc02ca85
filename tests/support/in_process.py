"""The controller's application in this process, and an agent's requests to it."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from gravac.protocol import Decision, JobAnswer, Record, WindowAnswer
from gravac_controller.api.app import create_app
from gravac_controller.api.services import Services
from gravac_controller.settings import ControllerSettings, Limits
from tools.harness.builders import Trainer, spec

LIMITS = {one.name for one in fields(Limits)}
JSON = {"Content-Type": "application/json"}


class InProcess:
    """The application in this process: ``client`` sends requests, ``services`` holds its state.

    Takes settings, and limits by their names.
    """

    def __init__(self, data_dir: Path, **chosen: Any) -> None:
        limits = {name: chosen.pop(name) for name in LIMITS & chosen.keys()}
        self.services = Services.of(ControllerSettings(data_dir=data_dir, **chosen).with_limits(**limits))
        self.services.store.open()
        self.client = TestClient(create_app(self.services), base_url="http://127.0.0.1")
        self.client.__enter__()

    def close(self) -> None:
        self.client.__exit__()
        self.services.store.close()


def post(app: InProcess, path: str, record: Record, status: int = 200) -> str:
    response = app.client.post(path, content=record.model_dump_json(), headers=JSON)
    assert response.status_code == status, response.text
    return response.text


def silence(app: InProcess, job: str = "job", seconds: float = 60.0) -> None:
    """Make the job look silent for this long."""
    app.services.store.jobs[job].live.presence.decided_time -= seconds


def register(app: InProcess, **changes: object) -> JobAnswer:
    """Register a start of the trainer. The one before counts as dead: it has been silent for a minute."""
    known = app.services.store.jobs.get(str(changes.get("job", "job")))
    if (
        known is not None
        and known.begun
        and known.live.spec_and_decision()[0].incarnation != changes.get("incarnation", "first")
    ):
        silence(app, str(changes.get("job", "job")))
    return JobAnswer.model_validate_json(post(app, "/v1/jobs", spec(**changes)))


def run(app: InProcess, trainer: Trainer, decision: Decision, windows: int) -> Decision:
    for _ in range(windows):
        answer = post(app, f"/v1/jobs/{trainer.job}/windows", trainer.report(decision))
        decision = WindowAnswer.model_validate_json(answer).decision
    return decision


def journal(app: InProcess, job: str = "job") -> list[str]:
    path = app.services.settings.data_dir / job / "journal.jsonl"
    return [json.loads(line)["kind"] for line in path.read_text().splitlines()]


def walk(app: InProcess, route: str, limit: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        query = "&" if "?" in route else "?"
        page = app.client.get(f"/v1/jobs/job/{route}{query}limit={limit}{after}").json()
        assert len(page["items"]) <= limit
        found += page["items"]
        if page["next"] is None:
            return found
        assert len(page["items"]) == limit or query == "&"
        after = f"&after={page['next']}"
