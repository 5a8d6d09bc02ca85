"""Folders that are not jobs: each is listed with a printable reason, and every list keeps working."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from gravac.protocol import JobAnswer
from gravac_controller.cli import main
from gravac_controller.jobs.store import Store
from tests.support.in_process import InProcess, register, run
from tools.harness.builders import Trainer, spec
from tools.harness.controller import Controller

ODD = {
    b"run1 (copy)": "run1 (copy)",
    b"a\nb": "a b",
    b"\x1b[2J\x1b]0;gone\x07": "?[2J?]0;gone?",
    b"<img src=x onerror=alert(1)>": "<img src=x onerror=alert(1)>",
    b"x" * 255: "x" * 255,
    b"caf\xe9": "caf?",
    b"caf\xea": "caf? (2)",
    "münchen".encode(): "münchen",
    "a\u202eb".encode(): "a?b",
}
"""Name of a folder, and how it is shown."""


def copies(data_dir: Path) -> None:
    """A copy of ``run1`` under each odd name."""
    for name in ODD:
        shutil.copytree(os.fsencode(data_dir / "run1"), os.fsencode(data_dir) + b"/" + name)


def test_every_list_works_beside_odd_folders(open_app: Callable[..., InProcess]) -> None:
    app = open_app()
    decision = run(app, Trainer("run1"), register(app, job="run1").decision, 3)
    app.close()
    copies(app.services.settings.data_dir)
    again = open_app()
    page = again.client.get("/v1/jobs")
    assert page.status_code == 200, page.text
    found = page.json()
    assert [item["job"] for item in found["items"]] == ["run1"]
    reasons = {journal["job"]: journal["reason"] for journal in found["unreadable"]}
    assert set(reasons) == set(ODD.values())
    assert all("name is not a job's" in reason for reason in reasons.values())
    assert again.client.get("/metrics").text.count('gravac_jobs{state="unreadable"} 9.0') == 1
    run(again, Trainer("run1", window=3), decision, 1)


@pytest.mark.parametrize("command", ["status", "explain"])
def test_reading_commands_work_beside_odd_folders(
    start: Callable[..., Controller], tmp_path: Path, command: str
) -> None:
    first = start()
    answer = JobAnswer.model_validate_json(first.ask("POST", "/v1/jobs", spec("run1")).body)
    first.ask("POST", "/v1/jobs/run1/windows", Trainer("run1").report(answer.decision))
    first.stop()
    copies(tmp_path / "runs")
    second = start()
    for where in ([second.url], ["--data-dir", str(tmp_path / "runs")]):
        result = CliRunner().invoke(main, [command, *where])
        assert result.exit_code == 0, result.output
        assert "run1" in result.output
        assert "\x1b]0" not in result.output
    log = second.log.read_text()
    assert "job run1 (copy) is not served" in log
    assert "\x1b" not in log


def test_a_folder_that_cannot_be_listed_is_named(
    open_app: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_app()
    run(app, Trainer("good"), register(app, job="good").decision, 1)
    (app.services.settings.data_dir / "locked").mkdir()
    app.close()
    listed = os.listdir

    def refuse(path: str | Path) -> list[str]:  # tests run as root, whom no mode keeps out
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    store = Store(app.services.settings)
    store.open()
    try:
        assert list(store.jobs) == ["good"]
        assert store.unreadable == {"locked": "the folder cannot be listed: Permission denied"}
    finally:
        store.close()


def test_status_as_json_names_them(start: Callable[..., Controller], tmp_path: Path) -> None:
    (tmp_path / "runs" / "a b").mkdir(parents=True)
    (tmp_path / "runs" / "a b" / "journal.jsonl").touch()
    result = CliRunner().invoke(main, ["status", start().url, "--json"])
    assert "name is not a job's" in json.loads(result.output)["unreadable"]["a b"]
