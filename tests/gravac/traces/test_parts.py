"""A journal in parts is one trace, and so is each part; a kill between any two steps of beginning a part loses
nothing."""

import gzip
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gravac.fold import JobFold
from gravac.policies import parse
from gravac.protocol import JobSpec, Record, WindowReport
from gravac.replays.replay import check, replay
from gravac.traces import Line, TraceError, TraceWriter, parts, read_trace
from tests.support.traces_made import Ticker
from tools.harness.cluster import Cluster, job_spec

CLUSTER = Cluster()


class Scribe:
    """Writes a job window by window, and begins a new part on request."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / parts.ACTIVE
        self.fold = JobFold(job_spec(parse("gravac").spec()))
        self.writer = TraceWriter(self.path, Ticker())
        self.writer.append(self.fold.spec, self.fold.decision)

    def windows(self, count: int) -> None:
        for _ in range(count):
            report = CLUSTER.report(self.fold.next_window, self.fold.decision)
            self.writer.append(report, self.fold.decide(report))

    def turn(self, compress: bool = True) -> None:
        changes = {"policy_state": self.fold.policy_state, "first_window": self.fold.next_window}
        self.writer.begin_part(
            self.fold.spec.model_copy(update=changes), self.fold.decision, summary='{"a":1}'
        )
        if compress:
            parts.compress(parts.full_parts(self.path.parent)[self.writer.part - 1])


@pytest.fixture
def scribe(tmp_path: Path) -> Scribe:
    """Windows 0 to 11 in three parts, the first of them compressed, the second full, the third active."""
    made = Scribe(tmp_path)
    made.windows(4)
    made.turn()
    made.windows(4)
    made.turn(compress=False)
    made.windows(4)
    return made


def windows(path: Path) -> list[int]:
    return [line.record.window for line in read_trace(path) if isinstance(line.record, WindowReport)]


def test_the_parts_are_one_trace(scribe: Scribe) -> None:
    names = sorted(path.name for path in scribe.path.parent.iterdir())
    assert names == ["journal.000001.jsonl.gz", "journal.000002.jsonl", "journal.jsonl"]
    assert windows(scribe.path) == list(range(12))
    lines = list(read_trace(scribe.path))
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    found = check(scribe.path)
    assert found.ok, found.differences
    assert (found.windows, found.notes) == (12, [])
    assert [row.window for row in replay(read_trace(scribe.path)).decisions] == [-1, *range(12)]


def test_between_the_renames_of_a_turn_the_full_parts_are_the_trace(scribe: Scribe) -> None:
    """A reader may open a running job at that moment; a missing journal is still an error."""
    scribe.path.rename(parts.full_part_path(scribe.path.parent, 3))
    assert windows(scribe.path) == list(range(12))
    for path in parts.full_parts(scribe.path.parent).values():
        path.unlink()
    with pytest.raises(TraceError, match="cannot be opened: No such file"):
        windows(scribe.path)


def test_each_part_is_a_trace_of_its_own(scribe: Scribe) -> None:
    folder = scribe.path.parent
    whole = {line.number: line.record for line in read_trace(scribe.path)}
    for number, expected in ((1, range(4)), (2, range(4, 8))):
        path = parts.full_parts(folder)[number]
        assert windows(path) == list(expected)
        found = check(path)
        assert found.ok, found.differences
        assert {line.number: line.record for line in read_trace(path)}.items() <= whole.items()
    (folder / "journal.000002.jsonl").unlink()  # a gap: parts before it may not belong
    assert windows(scribe.path) == list(range(8, 12))
    found = check(scribe.path)
    assert found.ok
    assert found.notes == ["begins with part 3: the parts before it are missing"]


def test_the_download_of_all_parts_is_one_trace(scribe: Scribe, tmp_path: Path) -> None:
    folder, whole = scribe.path.parent, tmp_path / "whole.jsonl"
    with whole.open("wb") as out:
        out.write(gzip.decompress((folder / "journal.000001.jsonl.gz").read_bytes()))
        out.write((folder / "journal.000002.jsonl").read_bytes())
        out.write(scribe.path.read_bytes())
    assert check(whole).ok
    assert windows(whole) == list(range(12))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_altered_line_of_any_part_is_found(scribe: Scribe, number: int) -> None:
    path = scribe.path if number == 3 else parts.full_parts(scribe.path.parent)[number]
    with parts.open_part(path) as file:
        data = file.read()
    path.write_bytes(data.replace(b'"samples":3200', b'"samples":3201', 1))
    found = check(scribe.path)
    assert found.differences[0].window == (number - 1) * 4
    assert "altered" in found.differences[0].message


def test_parts_of_another_journal_do_not_pass_for_its_own(scribe: Scribe, tmp_path: Path) -> None:
    other = Scribe(tmp_path / "other")
    other.windows(5)
    other.turn()
    shutil.copy(tmp_path / "other" / "journal.000001.jsonl.gz", scribe.path.parent)
    assert not check(scribe.path).ok


def test_the_writer_goes_on_after_a_turn(scribe: Scribe) -> None:
    scribe.writer.close()
    seen: list[Record] = []
    scribe.writer = TraceWriter(scribe.path, Ticker(), lambda line: seen.append(line.record))
    assert [type(record).__name__ for record in seen[:3]] == ["Part", "JobSpec", "Decision"]
    assert isinstance(seen[1], JobSpec)
    assert seen[1].first_window == 8
    scribe.windows(2)
    scribe.turn()
    scribe.windows(1)
    assert check(scribe.path).ok
    assert windows(scribe.path) == list(range(15))


def test_a_fold_from_one_part_goes_on_as_the_whole_would(scribe: Scribe) -> None:
    (spec,) = (
        line.record
        for line in read_trace(parts.full_parts(scribe.path.parent)[2])
        if isinstance(line.record, JobSpec)
    )
    alone, whole = JobFold(spec), JobFold(job_spec(parse("gravac").spec()))
    for window in range(12):
        report = CLUSTER.report(window, whole.decision)
        decision = whole.decide(report)
        if window >= 4:
            assert alone.decide(report) == decision


def test_a_disk_that_refuses_leaves_the_part_as_it_was(
    scribe: Scribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, refuse)
            with pytest.raises(OSError, match="No space"):
                scribe.turn()
        scribe.windows(1)
    real, calls = os.rename, []

    def second_fails(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", second_fails)
        with pytest.raises(OSError, match="No space"):
            scribe.turn()
    scribe.windows(1)
    assert check(scribe.path).ok
    assert windows(scribe.path) == list(range(15))
    assert not list(scribe.path.parent.glob("*.next"))


SYSTEM_CALLS = ("open", "write", "fsync", "rename", "unlink", "fchmod", "close")


def killed_at(point: int, work: Callable[[], None]) -> bool:
    """Do the work in a process that is killed (SIGKILL) before or after its n-th system call; return whether it was."""
    pid = os.fork()
    if pid == 0:
        left = [point]

        def counted(call: Any) -> Any:
            def wrapper(*arguments: Any, **options: Any) -> Any:
                step(left)
                result = call(*arguments, **options)
                step(left)
                return result

            return wrapper

        for name in SYSTEM_CALLS:
            setattr(os, name, counted(getattr(os, name)))
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def step(left: list[int]) -> None:
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.distributed
def test_a_kill_at_any_point_of_turning_or_compressing_loses_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    made = Scribe(source)
    made.windows(3)
    made.turn()
    made.windows(3)
    made.writer.close()
    point = 0
    while True:
        point += 1
        folder = tmp_path / str(point)
        shutil.copytree(source, folder)

        def work(folder: Path = folder) -> None:
            made.path = folder / parts.ACTIVE
            made.writer = TraceWriter(made.path, Ticker())
            made.turn()

        killed = killed_at(point, work)
        seen: list[Record] = []

        def visit(line: Line, seen: list[Record] = seen) -> None:
            seen.append(line.record)

        with TraceWriter(folder / parts.ACTIVE, Ticker(), visit) as writer:
            assert windows(folder / parts.ACTIVE) == list(range(6)), point
            fold = JobFold(next(record for record in seen if isinstance(record, JobSpec)))
            for record in seen:
                if isinstance(record, WindowReport):
                    fold.decide(record)
            report = CLUSTER.report(6, fold.decision)
            writer.append(report, fold.decide(report))
        found = check(folder / parts.ACTIVE)
        assert found.ok, (point, found.differences)
        assert found.windows == 7
        names = {path.name for path in folder.iterdir()}
        full = {"journal.000002.jsonl", "journal.000002.jsonl.gz"}
        assert names - full == {"journal.jsonl", "journal.000001.jsonl.gz"}
        assert not full <= names
        if not killed:
            break
    assert point > 30
    assert "journal.000002.jsonl.gz" in names


def test_what_is_in_the_folder_besides_is_left_alone(tmp_path: Path) -> None:
    for name in ("journal.1.jsonl", "journal.0000001x.jsonl", "notes.txt", "journal.000001.jsonl.bak"):
        (tmp_path / name).write_text("mine")
    assert parts.full_parts(tmp_path) == {}
    parts.repair(tmp_path / parts.ACTIVE)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_part_that_is_no_gzip_is_named(scribe: Scribe) -> None:
    (scribe.path.parent / "journal.000001.jsonl.gz").write_bytes(b"\x1f\x8b nonsense")
    with pytest.raises(TraceError, match=r"journal\.jsonl line 1: cannot be read"):
        list(read_trace(scribe.path))
