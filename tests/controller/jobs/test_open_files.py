"""Files that a controller holds open are bounded, and a controller that cannot write is not ready."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gravac.protocol import End, Event
from gravac.replays.replay import check
from gravac_controller.jobs.journal import SPARE_FILES
from tools.chaos.disk import Disk
from tools.harness.builders import PostedJob
from tools.harness.controller import Controller
from tools.harness.forked import surroundings

pytestmark = pytest.mark.distributed

CONNECTIONS, JOURNALS, JOBS = 10, 20, 50
SETTINGS = {"GRAVAC_CONTROLLER_MAX_CONNECTIONS": str(CONNECTIONS)}
FILES = CONNECTIONS + SPARE_FILES + JOURNALS
"""What such a controller needs for all else, and for that many journals."""


def open_journals(controller: Controller) -> int:
    folder = Path(f"/proc/{controller.process.pid}/fd")
    return sum(os.readlink(one).endswith("journal.jsonl") for one in folder.iterdir() if one.is_symlink())


def test_jobs_that_go_silent_leave_files_for_connections(start: Callable[..., Controller]) -> None:
    """Journals that were closed go on where they ended, whenever their jobs report again."""
    controller = start(env=SETTINGS)
    resource.prlimit(controller.process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
    jobs = [PostedJob(controller, f"job{number}") for number in range(JOBS)]
    for _ in range(2):
        for job in jobs:
            job.windows(1)
        assert open_journals(controller) <= JOURNALS
    controller.stop()
    controller = start(env=SETTINGS)
    resource.prlimit(controller.process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
    for job in jobs:
        job.controller = controller
        job.windows(1)
    assert open_journals(controller) <= JOURNALS
    controller.stop()
    for number in range(JOBS):
        checked = check(controller.data_dir / f"job{number}/journal.jsonl")
        assert checked.ok
        assert checked.windows == 3


def test_all_journals_stay_open_where_files_allow_it(start: Callable[..., Controller]) -> None:
    """To open one again costs reading its last part."""
    controller = start(env=SETTINGS)
    for number in range(JOURNALS + 5):
        PostedJob(controller, f"job{number}")
    assert open_journals(controller) == JOURNALS + 5


def test_what_comes_after_the_end_of_a_job_leaves_no_file_open(controller: Controller) -> None:
    PostedJob(controller, "job").windows(1)
    end = End(incarnation="first", windows=1, steps=50, message="finished")
    assert controller.ask("POST", "/v1/jobs/job/end", end).status == 200
    assert open_journals(controller) == 0
    late = Event(kind="note", window=None, message="late")
    assert controller.ask("POST", "/v1/jobs/job/events", late).status == 200
    assert open_journals(controller) == 0


def test_too_few_files_for_connections_are_said(tmp_path: Path) -> None:
    for most, said in ((CONNECTIONS + SPARE_FILES, True), (2000, False)):
        command = (
            f"ulimit -n {most} && exec {sys.executable} -m gravac_controller serve --with-parent --port 0"
        )
        done = subprocess.run(
            ["sh", "-c", f"{command} --data-dir {tmp_path / str(most)}"],
            env=surroundings(**SETTINGS),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        assert (
            f"this process may open {most} files, and {CONNECTIONS} connections need" in done.stderr
        ) == said


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    found = Disk(tmp_path / "disk")
    yield found
    found.unmount()


def test_a_controller_on_a_full_disk_is_alive_and_not_ready(
    start: Callable[..., Controller], disk: Disk
) -> None:
    controller = start(data_dir=disk.folder / "runs")
    assert controller.ask("GET", "/readyz").status == 200
    disk.fill(controller.process.pid)
    until = time.monotonic() + 10.0
    while (answer := controller.ask("GET", "/readyz")).status == 200 and time.monotonic() < until:
        time.sleep(0.1)
    assert answer.status == 503
    assert "the data folder cannot be written" in answer.json["detail"]
    assert controller.ask("GET", "/healthz").status == 200
    disk.free()
    while (answer := controller.ask("GET", "/readyz")).status == 503 and time.monotonic() < until:
        time.sleep(0.1)
    assert answer.status == 200
    assert [one.name for one in (disk.folder / "runs").iterdir()] == [".controller.lock"]
