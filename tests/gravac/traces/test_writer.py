"""Writing traces: the chain of digests, torn tails, locks, bounds."""

import errno
import json
import os
import stat
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gravac.policies import parse
from gravac.protocol import SCHEMA
from gravac.traces import TraceError, TraceWriter, read_trace
from gravac.traces import line as traceline
from gravac.traces.line import encode
from tests.support.traces_made import NOTE, Ticker, make, records, write


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    pieces = records(parse("gravac"), 3)
    write(tmp_path / "a.jsonl", pieces)
    lines = list(read_trace(tmp_path / "a.jsonl"))
    assert [line.record for line in lines] == [record for piece in pieces for record in piece]
    assert [line.kind for line in lines] == ["job", "decision", *["window", "decision"] * 3, "event", "end"]
    assert [line.number for line in lines] == list(range(1, 11))
    assert [line.time for line in lines][:4] == [1000.5, 1000.5, 1001.5, 1001.5]
    assert all(line.intact for line in lines)


def test_a_line_is_what_the_docs_say(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a.jsonl").splitlines()[:2]
    body = json.loads(first)
    assert list(body) == ["kind", "schema", "time", "body", "digest"]
    assert (body["kind"], body["schema"]) == ("job", SCHEMA)
    digest = sha256(first[: first.rindex(b',"digest":')]).hexdigest()[:16]
    assert body["digest"] == digest
    chained = sha256(digest.encode() + second[: second.rindex(b',"digest":')]).hexdigest()[:16]
    assert json.loads(second)["digest"] == chained


def test_reopening_goes_on_with_the_chain(tmp_path: Path) -> None:
    pieces = records(parse("gravac"), 4)
    whole = write(tmp_path / "whole.jsonl", pieces)
    path, clock, seen = tmp_path / "parts.jsonl", Ticker(), []
    for piece in pieces:
        seen.clear()
        with TraceWriter(path, clock, visit=seen.append) as writer:
            lines = writer.append(*piece)
            assert lines[0].number == len(seen) + 1
    assert path.read_bytes() == whole
    assert len(seen) == sum(map(len, pieces)) - len(pieces[-1])


def test_torn_at_every_byte_loses_only_the_torn_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # two thousand, and the disk is not asked about
    whole = make(tmp_path / "whole.jsonl", "static:cf=10", windows=1)
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    path = tmp_path / "torn.jsonl"
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        before = max([end for end in ends if end <= length], default=0)
        complete = before if length + 1 not in ends else length  # a lost newline loses nothing
        count = sum(end <= length + 1 for end in ends)
        with TraceWriter(path, Ticker()) as writer:
            assert writer.lines == count, length
            assert bool(writer.notes) == (length > complete), (length, writer.notes)
            writer.append(NOTE)
        again = list(read_trace(path)) if count else []
        assert len(again) == (count + 1 if count else 0), length


def test_torn_tail_is_told_by_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(make(path)[:-40])
    lines = read_trace(path)
    assert len(list(lines)) == 17
    assert len(lines.notes) == 1
    assert lines.notes[0].startswith("line 18 is torn (")


def test_nul_bytes_after_a_crash_are_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    data = make(path)
    path.write_bytes(data + b"\0" * 4096)
    with TraceWriter(path, Ticker()) as writer:
        assert writer.notes == ("line 19 is torn (4096 bytes without an end): left out",)
    assert path.read_bytes() == data


def test_a_damaged_journal_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    data = make(path).replace(b'"samples":3200', b'"samples":3201', 1)
    path.write_bytes(data)
    with pytest.raises(
        TraceError, match=r"a\.jsonl line 3: was altered after it was written \(digest .*expected"
    ):
        TraceWriter(path, Ticker())
    assert path.read_bytes() == data
    TraceWriter(tmp_path / "b.jsonl", Ticker()).close()  # and the lock and the file were freed
    path.write_bytes(b"")
    TraceWriter(path, Ticker()).close()


@pytest.mark.distributed
def test_two_writers_are_refused_even_across_processes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    code = (
        "import sys, time; from gravac.traces import TraceWriter, TraceError\n"
        "try: TraceWriter(sys.argv[1], time.time)\n"
        "except TraceError as error: print(error)\n"
    )
    with TraceWriter(path, Ticker()):
        with pytest.raises(TraceError, match="another controller is writing it; stop that one, or"):
            TraceWriter(path, Ticker())
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
        )
        assert "another controller is writing it" in done.stdout
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.jsonl"
    TraceWriter(path, Ticker()).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_window_and_its_decision_are_one_write_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real_write, real_sync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda fd, data: (calls.append("write"), real_write(fd, data))[1])
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), real_sync(fd))[1])
    write(tmp_path / "a.jsonl", records(parse("static:cf=4"), 1)[:2])
    assert calls == ["write", "fsync"] * 2


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    pieces = records(parse("static:cf=4"), 2)
    with TraceWriter(path, Ticker()) as writer:
        writer.append(*pieces[0])
        before = path.read_bytes()
        real = os.write

        def half(fd: int, data: Any) -> int:
            if len(data) > 500:
                return real(fd, bytes(data[:300]))
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            with pytest.raises(OSError, match="No space left"):
                writer.append(*pieces[1])
        assert path.read_bytes() == before
        writer.append(*pieces[1])
    assert [line.kind for line in read_trace(path)] == ["job", "decision", "window", "decision"]


@pytest.mark.parametrize("kind", ["folder", "file in the way"])
def test_a_place_that_cannot_be_written(tmp_path: Path, kind: str) -> None:
    if kind == "folder":
        path = tmp_path
    else:
        (tmp_path / "file").write_text("x")
        path = tmp_path / "file" / "a.jsonl"
    with pytest.raises(TraceError, match="cannot be opened for writing"):
        TraceWriter(path, Ticker())


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "a.jsonl", Ticker())
    writer.close()
    writer.close()


def test_huge_records_and_bad_clocks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="time: must be finite, got inf"):
        encode(NOTE, float("inf"), "")
    monkeypatch.setattr(traceline, "MAX_LINE_BYTES", 100)
    with pytest.raises(ValueError, match=r"a trace line of \d+ bytes \(event\); at most 100"):
        encode(NOTE, 1.0, "")
