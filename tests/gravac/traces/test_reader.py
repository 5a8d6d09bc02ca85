"""Reading traces from untrusted sources: compressed, damaged, hostile."""

import gzip
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gravac.traces import TraceError, read_trace
from tests.support.traces_made import NOTE, make, write


def test_gzip_is_read_as_it_is(tmp_path: Path) -> None:
    data = make(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data))
    assert list(read_trace(tmp_path / "a.jsonl.gz")) == list(read_trace(tmp_path / "a.jsonl"))


def test_gzip_cut_short_gives_what_is_there(tmp_path: Path) -> None:
    data = gzip.compress(make(tmp_path / "a.jsonl", windows=60), compresslevel=0)
    (tmp_path / "b.gz").write_bytes(data[: len(data) // 2])
    lines = read_trace(tmp_path / "b.gz")
    assert len(list(lines)) > 10
    assert "ends early" in lines.notes[0]


def test_broken_gzip_is_one_clear_error(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(make(tmp_path / "a.jsonl")))
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "b.gz").write_bytes(data)
    with pytest.raises(TraceError, match=r"b\.gz line \d+: "):
        list(read_trace(tmp_path / "b.gz"))


def test_a_bomb_costs_no_more_than_its_bound(tmp_path: Path) -> None:
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"\0" * (50 << 20)))
    with pytest.raises(TraceError, match="line 1: is longer than 1048576 bytes"):
        list(read_trace(tmp_path / "bomb.gz"))
    make(tmp_path / "a.jsonl", windows=20)
    with pytest.raises(TraceError, match="the trace is longer than 5000 bytes"):
        list(read_trace(tmp_path / "a.jsonl", max_bytes=5000))


def test_crlf_and_byte_order_mark_are_forgiven_and_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    plain = make(path)
    path.write_bytes(b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"))
    lines = read_trace(path)
    assert [line.record for line in lines] == [line.record for line in read_trace(io.BytesIO(plain))]
    assert lines.notes == ["began with a byte order mark: ignored", "has CRLF line ends: ignored"]


def edited(data: bytes, line: int, old: bytes, new: bytes) -> bytes:
    rows = data.splitlines(keepends=True)
    assert old in rows[line - 1]
    rows[line - 1] = rows[line - 1].replace(old, new, 1)
    return b"".join(rows)


@pytest.mark.parametrize(
    ("line", "old", "new", "words"),
    [
        (1, b'"schema":1', b'"schema":2', "line 1: schema: this gravac reads version 1, the line has 2; a newer"),
        (3, b'"schema":1', b'"schema":0', "line 3: schema: this gravac reads version 1, the line has 0$"),
        (3, b'"kind":"window"', b'"kind":"wonder"', "line 3: kind: must be one of job, window, .*got 'wonder'"),
        (3, b'"job":"job"', b'"job":"mob"', "line 3: window.job: this is the trace of 'job', got 'mob'"),
        (3, b'"cf":1.0', b'"cf":0.5', r"line 3: window.cf: .*at least 1 \(got 0.5\)"),
        (3, b'"seconds":55', b'"seconds":NaN,"x":55', "line 3: window.seconds"),
        (3, b'"loss":2.25', b'"loss":"2.25"', "line 3: window.loss: must be a number"),
        (3, b'"loss":2.25,', b"", "line 3: window.loss: is missing"),
        (3, b'"loss":2.25', b'"loss":2.25,"extra":1', "line 3: window.extra: .*not permitted"),
        (4, b'{"kind"', b'{ "kind"', "line 4: not a trace line: it does not begin"),
        (4, b'"digest":"', b'"digest":"0', "line 4: not a trace line: it does not end"),
        (1, b'{"kind":"job"', b'{"kind":"end"', "line 1: end"),
    ],
)  # fmt: skip
def test_bad_lines_name_line_and_field(tmp_path: Path, line: int, old: bytes, new: bytes, words: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(edited(make(path), line, old, new))
    with pytest.raises(TraceError, match=words) as caught:
        list(read_trace(path, verify=False))
    assert (caught.value.line, caught.value.path) == (line, str(path))


def test_a_trace_begins_with_its_job(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [(NOTE,)])
    with pytest.raises(TraceError, match="line 1: a trace begins with its job, not with 'event'"):
        list(read_trace(tmp_path / "a.jsonl"))


def test_a_missing_file_is_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be opened: No such file"):
        read_trace(tmp_path / "none.jsonl")


def test_a_stream_of_the_caller_stays_open(tmp_path: Path) -> None:
    stream = io.BytesIO(make(tmp_path / "a.jsonl"))
    assert len(list(read_trace(stream))) == 18
    assert not stream.closed


@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_mutated_files_raise_the_documented_error_only(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "fuzz.jsonl"
    if not path.exists():
        make(path, "static:cf=10", windows=2)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        action = data.draw(st.sampled_from(["set", "cut", "insert", "repeat"]))
        if action == "set":
            raw[at] = data.draw(st.integers(0, 255))
        elif action == "cut":
            del raw[at : at + data.draw(st.integers(1, 200))]
        elif action == "insert":
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=20))
        else:
            raw[at:at] = raw[at : at + data.draw(st.integers(1, 400))]
        if not raw:
            return
    try:
        list(read_trace(io.BytesIO(bytes(raw)), verify=data.draw(st.booleans())))
    except TraceError as error:
        assert error.line  # noqa: PT017
