"""Whoever may create files in a folder of journals cannot make us write to another file of ours."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gravac.policies import parse
from gravac.traces import TraceError, TraceWriter, parts
from gravac_agent.reporting.job_lock import JobLock
from gravac_agent.reporting.launcher import ControllerProcess
from gravac_controller.lock import DataDirError, DataDirLock
from tests.support.traces_made import records

PRECIOUS = b"precious\n"


def link(kind: str, path: Path, victim: Path) -> None:
    """Put a link to another file where we are about to write; of a pipe, something that is no file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "symbolic":
        path.symlink_to(victim)
    elif kind == "hard":
        path.hardlink_to(victim)
    else:
        os.mkfifo(path)


def controller_lock(folder: Path) -> None:
    with pytest.raises(DataDirError, match=r"\.controller\.lock is a link or no file of its own.*remove it"):
        DataDirLock(folder).acquire()


def agent_lock(folder: Path) -> None:
    assert JobLock.acquire(folder.parent, folder.name) is None


def journal(folder: Path) -> None:
    with pytest.raises(TraceError, match=r"journal\.jsonl is a link or no file of its own.*remove it"):
        TraceWriter(folder / parts.ACTIVE, time.time)


def log(folder: Path) -> None:
    process = ControllerProcess(folder, "mine", 0)
    with pytest.raises(OSError, match=r"controller\.log is a link or no file of its own.*remove it"):
        process.start()
    process.close()


@pytest.mark.parametrize("kind", ["symbolic", "hard", "pipe"])
@pytest.mark.parametrize(
    ("name", "refused"),
    [
        (".controller.lock", controller_lock),
        (".agent.lock", agent_lock),
        ("journal.jsonl", journal),
        ("controller.log", log),
    ],
)
def test_what_is_no_file_of_ours_is_refused(
    tmp_path: Path, kind: str, name: str, refused: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(PRECIOUS)
    link(kind, tmp_path / "runs" / "mine" / name, victim)
    refused(tmp_path / "runs" / "mine")
    assert victim.read_bytes() == PRECIOUS
    if name == ".agent.lock":
        assert "is a link or no file of its own" in caplog.text


@pytest.mark.parametrize("kind", ["symbolic", "hard", "pipe"])
def test_drafts_take_the_place_of_links(tmp_path: Path, kind: str) -> None:
    """A new part, a deleted journal that is written back, a full part that is compressed, and opened again."""
    victim, path = tmp_path / "victim", tmp_path / "runs" / "mine" / parts.ACTIVE
    victim.write_bytes(PRECIOUS)
    head, first, *_ = records(parse("static:cf=4"), 2)
    with TraceWriter(path, time.time) as writer:
        writer.append(*head)
        writer.append(*first)
        link(kind, parts.next_path(path), victim)
        path.unlink()
        assert not writer.check()
        link(kind, parts.next_path(path), victim)
        writer.begin_part(head[0], first[1], summary="{}")
    (full,) = parts.full_parts(path.parent).values()
    link(kind, full.with_name(full.name + ".gz.tmp"), victim)
    packed = parts.compress(full)
    path.unlink()
    link(kind, parts.next_path(path), victim)
    parts.repair(path)
    assert not packed.exists()
    TraceWriter(path, time.time).close()
    assert victim.read_bytes() == PRECIOUS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_folders_are_private_whoever_makes_them_first(tmp_path: Path) -> None:
    made = [tmp_path / name / "runs" / "mine" for name in ("agent", "controller", "journal")]
    lock = JobLock.acquire(made[0].parent, "mine")
    assert lock is not None
    held = DataDirLock(made[1]).acquire()
    TraceWriter(made[2] / parts.ACTIVE, time.time).close()
    for folder in made:
        for each in (folder, folder.parent):
            assert stat.S_IMODE(each.stat().st_mode) == 0o700, each
    lock.release()
    held.release()
