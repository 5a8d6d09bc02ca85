"""The tail of a journal is torn in the head of a fresh part: the job goes on, over one restart and the next."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gravac.replays.replay import check
from gravac.traces import parts, read_trace
from tests.support.direct import run
from tests.support.in_process import InProcess, register
from tools.harness.builders import Trainer

SMALL = 1 << 16  # about 14 windows
HEAD = ("part", "job", "decision")


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose job has just started its third part, which holds only its head."""
    app = InProcess(tmp_path_factory.mktemp("turned") / "runs", journal_part_bytes=SMALL)
    trainer, decision = Trainer(), register(app).decision
    while app.services.store.jobs["job"].journal.end.part < 3:
        decision = run(app, trainer, decision, 1)
    folder = app.services.settings.data_dir
    app.close()
    kinds = [json.loads(line)["kind"] for line in (folder / "job" / parts.ACTIVE).read_bytes().splitlines()]
    assert tuple(kinds) == HEAD
    assert len(parts.full_parts(folder / "job")) == 2
    return folder


def copied(turned: Path, tmp_path: Path, keep: int, packed: bool) -> Path:
    """The folder with only ``keep`` bytes of its active part; returns that file."""
    shutil.copytree(turned, tmp_path / "runs")
    path = tmp_path / "runs" / "job" / parts.ACTIVE
    path.write_bytes(path.read_bytes()[:keep])
    for file in parts.full_parts(path.parent).values():
        if packed and file.suffix == ".jsonl":
            parts.compress(file)
        elif not packed and file.suffix == ".gz":
            file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
            file.unlink()
    return path


def cuts(turned: Path) -> list[int]:
    """Where the head may be torn: in each line, at its ends, and before its newline."""
    found, begin = [0], 0
    for line in (turned / "job" / parts.ACTIVE).read_bytes().splitlines(keepends=True):
        found += [begin + 5] if begin == 0 else []
        found += [begin + len(line) // 2, begin + len(line) - 1, begin + len(line)]
        begin += len(line)
    return found


@pytest.mark.parametrize(
    ("cut", "packed"), [*((cut, False) for cut in range(11)), (0, True), (2, True), (5, True)]
)
def test_the_job_continues_over_two_restarts(
    turned: Path, tmp_path: Path, cut: int, packed: bool, open_app: Callable[..., InProcess]
) -> None:
    whole = list(read_trace(turned / "job" / parts.ACTIVE))
    before = sum(line.kind == "window" for line in whole)
    path = copied(turned, tmp_path, cuts(turned)[cut], packed)
    torn = check(path)
    assert torn.ok, torn.differences
    assert torn.windows == before, "readers see every window meanwhile"
    for restart in range(2):
        app = open_app(journal_part_bytes=SMALL)
        assert app.services.store.unreadable == {}
        answer = register(app)
        assert answer.next_window == before + 3 * restart
        last = run(app, Trainer(window=answer.next_window), answer.decision, 3)
        assert app.client.get("/v1/jobs/job").json()["decision"]["window"] == last.window
        found = app.client.get("/v1/jobs/job/decisions?limit=1000").json()["items"]
        assert [one["decision"]["window"] for one in found] == list(range(-1, last.window + 1))
        app.close()
        replayed = check(path)
        assert replayed.ok, replayed.differences
        assert replayed.windows == before + 3 * (restart + 1)


def test_a_journal_that_continued_after_a_torn_head_is_readable(
    turned: Path, tmp_path: Path, open_app: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As older controllers left it: windows follow a head without its decision."""
    path = copied(turned, tmp_path, cuts(turned)[7], packed=True)
    with monkeypatch.context() as patch:
        patch.setattr("gravac.replays.follow.Follower.missing_head", ())
        app = open_app(journal_part_bytes=SMALL)
        answer = register(app)
        run(app, Trainer(window=answer.next_window), answer.decision, 3)
        app.close()
    kinds = [json.loads(line)["kind"] for line in path.read_bytes().splitlines()]
    assert kinds[:4] == ["part", "job", "window", "decision"]
    again = open_app(journal_part_bytes=SMALL)
    assert again.services.store.unreadable == {}
    resumed = register(again)
    assert resumed.next_window == answer.next_window + 3
    assert check(path).ok
    found = again.client.get("/v1/jobs/job/decisions?limit=1000").json()["items"]
    assert [one["decision"]["window"] for one in found] == list(range(-1, resumed.next_window))


def test_a_duplicate_part_is_dropped_only_where_it_is_a_copy(tmp_path: Path) -> None:
    """A crash between the steps of making the newest full part the active one again."""
    path = tmp_path / parts.ACTIVE
    full = parts.full_part_path(tmp_path, 1)
    path.write_bytes(b"one\ntwo\nthree\n")
    full.write_bytes(b"one\ntwo\n")
    parts.repair(path)
    assert not full.exists()
    full.write_bytes(b"another\n")
    parts.repair(path)
    assert full.read_bytes() == b"another\n"
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_other_damage_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / parts.ACTIVE
    full = parts.full_part_path(tmp_path, 1)
    full.write_bytes(b"a full part\n")
    for other in (b"somebody's notes", b'{"kind":"job","schema":3', b"x" * (1 << 20)):
        path.write_bytes(other)
        parts.repair(path)
        assert path.read_bytes() == other
        assert full.exists()
