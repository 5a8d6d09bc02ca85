"""What the controller's image and the composition run, in surroundings like the container's (see ``container``)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.monitoring.dockerfile import environment, only, read
from tests.support.monitoring.shipped import ROOT, SERVICES
from tools.harness.builders import spec

STAGE = read(ROOT / "docker/controller.Dockerfile")[-1]
USER = int(only(STAGE, "USER").rest.partition(":")[0])
CONTAINER = Path(__file__).parents[1] / "support/monitoring/container.py"

pytestmark = pytest.mark.alone


def unusable() -> str | None:
    """Why such surroundings cannot be made here."""
    if os.geteuid() != 0:
        return "mounts and networks of its own need root"
    if shutil.which("setpriv") is None or shutil.which("unshare") is None:
        return "setpriv and unshare are missing (Debian: util-linux)"
    if subprocess.run(
        ["setpriv", f"--reuid={USER}", sys.executable, "-c", "import gravac"], check=False
    ).returncode:
        return "other users may not read this Python environment"
    try_out = ["unshare", "--mount", "--net", "mount", "--make-rprivate", "/"]
    return None if subprocess.run(try_out, check=False).returncode == 0 else "no namespaces here"


def ours(command: list[str]) -> list[str]:
    """The same by this environment's Python."""
    by_name = {"python": [sys.executable], "gravac": [sys.executable, "-m", "gravac_controller"]}
    return [*by_name[command[0]], *command[1:]]


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    if (reason := unusable()) is not None:
        pytest.skip(reason)
    request = {
        "user": USER,
        "environment": environment(STAGE)
        | SERVICES["controller"]["environment"]
        | {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        "make_token": ours(SERVICES["token"]["entrypoint"]),
        "health": ours(json.loads(only(STAGE, "HEALTHCHECK").rest.removeprefix("CMD "))),
        "serve": ours([*only(STAGE, "ENTRYPOINT").words, *SERVICES["controller"]["command"]]),
        "registration": spec("made-here").model_dump_json(),
    }
    done = subprocess.run(
        ["unshare", "--mount", "--net", sys.executable, str(CONTAINER)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_health_check_tells(seen: dict[str, Any]) -> None:
    before, running = seen["before_and_while_it_runs"]
    assert before != 0
    assert running == 0, seen["output"]


def test_nothing_but_the_volumes_is_written_to(seen: dict[str, Any]) -> None:
    assert seen["writes_elsewhere"] != 0
    assert seen["journals"] == ["made-here/journal.jsonl"]


def test_one_token_is_made_and_kept_for_our_user(seen: dict[str, Any]) -> None:
    assert seen["made_token"] == [0, 0]
    assert seen["token_mode"] == "0o400"


def test_looking_is_open_and_reporting_needs_the_token(seen: dict[str, Any]) -> None:
    assert "reading needs the token" not in seen["output"]
    statuses = {what: status for what, (status, _) in seen["answers"].items()}
    assert statuses == {
        "look": 200,
        "scrape": 200,
        "report": 200,
        "report without token": 401,
        "foreign": 400,
    }
    assert json.loads(seen["answers"]["scrape"][1])[0]["targets"] == ["controller:8756"]


def test_stopping_the_container_takes_no_time(seen: dict[str, Any]) -> None:
    assert seen["ended"] == 0
    assert seen["ending_seconds"] < 2
    assert "Traceback" not in seen["output"]
