"""Broken and malicious files: one clear error with file, line and field, or a repair with a note.

Each is a small trace, altered. ``verify=False`` where the digest alone would show it, as an attacker computes digests
again.
"""

import gzip
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gravac.protocol import SCHEMA
from gravac.replays.replay import check
from gravac.traces import TraceError, read_trace
from gravac.traces.line import MAX_LINE_BYTES
from tests.support.traces_made import make

Change = Callable[[bytes], bytes]
WINDOW = 3
"""The line of the first window; its decision is the next."""


def line(number: int, old: bytes, new: bytes) -> Change:
    def change(data: bytes) -> bytes:
        rows = data.splitlines(keepends=True)
        assert old in rows[number - 1], old
        rows[number - 1] = rows[number - 1].replace(old, new, 1)
        return b"".join(rows)

    return change


def swapped(first: int, second: int) -> Change:
    def change(data: bytes) -> bytes:
        rows = data.splitlines(keepends=True)
        rows[first - 1], rows[second - 1] = rows[second - 1], rows[first - 1]
        return b"".join(rows)

    return change


def window(old: bytes, new: bytes) -> Change:
    return line(WINDOW, old, new)


def setting(value: bytes) -> Change:
    return line(1, b'"epsilon":0.3', b'"epsilon":' + value)


def packed(change: Change) -> Change:
    return lambda data: gzip.compress(change(data))


def unchanged(data: bytes) -> bytes:
    return data


NOW = f'"schema":{SCHEMA}'.encode()
DEEP = b"[" * 200_000 + b"]" * 200_000
REFUSED: dict[str, tuple[Change, str]] = {
    "torn in the middle": (
        line(2, b"\n", b""),
        "line 2: decision: its body is not JSON: trailing characters at its character",
    ),
    "huge line": (
        window(b'"loss":2.25', b'"loss":' + b" " * MAX_LINE_BYTES + b"2.25"),
        f"line 3: .*longer than {MAX_LINE_BYTES}",
    ),
    "huge line, packed": (
        packed(lambda data: data + b"x" * (40 << 20)),
        f"line 13: .*longer than {MAX_LINE_BYTES} bytes",
    ),
    "bomb": (packed(lambda data: bytes(100 << 20)), f"line 1: is longer than {MAX_LINE_BYTES} bytes"),
    "packed twice": (packed(gzip.compress), "line 1: not a trace line"),
    "rubbish after the packed": (lambda data: gzip.compress(data) + b"rubbish", "cannot be read"),
    "version 0": (
        line(1, NOW, b'"schema":0'),
        f"line 1: schema: .*reads version {SCHEMA}, the line has 0",
    ),
    "version to come": (
        line(1, NOW, b'"schema":999999999'),
        "line 1: schema: .*has 999999999; a newer gravac",
    ),
    "version in words": (line(1, NOW, b'"schema":"two"'), "line 1: not a trace line"),
    "version negative": (line(1, NOW, b'"schema":-2'), "line 1: not a trace line"),
    "other kind": (
        window(b'"kind":"window"', b'"kind":"wander"'),
        "line 3: kind: must be one of job,.*got 'wander'",
    ),
    "of another kind": (window(b'"kind":"window"', b'"kind":"end"'), "line 3: end"),
    "of another job": (window(b'"job":"job"', b'"job":"mob"'), "line 3: window.job: .*of 'job', got 'mob'"),
    "without its job": (lambda data: data.split(b"\n", 1)[1], "line 1: a trace begins with its job"),
    "mark in the middle": (window(b'{"kind"', b'\xef\xbb\xbf{"kind"'), "line 3: not a trace line"),
    "utf-16": (lambda data: data.decode().encode("utf-16"), "line 1: not a trace line"),
    "latin-1": (window(b'"incarnation":"first"', b'"incarnation":"f\xefrst"'), "line 3: window"),
    "nul": (window(b'"incarnation":"first"', b'"incarnation":"fi\0st"'), "line 3: window"),
    "half a surrogate": (line(4, b'"reason":"', b'"reason":"\\ud800'), "line 4: decision"),
    "a line of nothing": (lambda data: b"\n" + data, "line 1: not a trace line"),
    "html": (lambda data: b"<!DOCTYPE html><html>not found</html>\n", "line 1: not a trace line"),
    "deep": (window(b'"loss":2.25', b'"loss":' + DEEP), "line 3: window"),
    "deep in what may hold anything": (setting(DEEP), "line 1: job"),
    "NaN": (window(b'"loss":2.25', b'"loss":NaN'), "line 3: window"),
    "infinite": (window(b'"loss":2.25', b'"loss":1e999'), "line 3: window.loss"),
    "endless digits": (
        window(b'"samples":3200', b'"samples":' + b"9" * 5000),
        "line 3: window: .*out of range",
    ),
    "negative": (window(b'"samples":3200', b'"samples":-1'), r"line 3: window.samples: .*\(got -1\)"),
    "below one": (window(b'"cf":1.0', b'"cf":0.999'), r"line 3: window.cf: .*\(got 0.999\)"),
    "as text": (window(b'"samples":3200', b'"samples":"3200"'), "line 3: window.samples: .*whole number"),
    "true for a number": (
        window(b'"samples":3200', b'"samples":true'),
        "line 3: window.samples: .*whole number",
    ),
    "fraction for a count": (
        window(b'"samples":3200', b'"samples":3200.5'),
        "line 3: window.samples: .*whole number",
    ),
    "missing field": (window(b'"samples":3200,', b""), "line 3: window.samples: is missing"),
    "unknown field": (
        window(b'"samples":3200', b'"samples":3200,"colour":1'),
        "line 3: window.colour: .*not permitted",
    ),
    "too long a list": (
        window(b'"gains":[', b'"gains":[' + b'{"cf":2.0,"gain":0.5},' * 64 + b'{"cf":2.0,"gain":0.5}'),
        "line 3: window.gains",
    ),
    "endless text": (
        line(4, b'"reason":"', b'"reason":"' + b"a" * 1001),
        "line 4: decision.reason: .*at most 1000",
    ),
    "time without end": (window(b'"time":', b'"time":1e999,"x":'), "line 3: not a trace line"),
    "body of a list": (window(b'"body":{', b'"body":[{'), "line 3: window"),
}
DECIDED: dict[str, tuple[Change, str]] = {
    "missing window": (
        lambda data: b"".join(data.splitlines(keepends=True)[:4] + data.splitlines(keepends=True)[6:]),
        "window 1 is missing before line 5",
    ),
    "doubled window": (
        lambda data: b"".join((rows := data.splitlines(keepends=True))[:4] + rows[2:]),
        "window 0: line 5 repeats it",
    ),
    "windows in another order": (swapped(3, 5), "window 0 is missing before line 3"),
    "decision without its window": (
        lambda data: b"".join((rows := data.splitlines(keepends=True))[:2] + rows[3:]),
        "window 0: line 3 is a decision without its window",
    ),
    "unheard-of policy": (
        line(1, b'"name":"gravac"', b'"name":"garvac"'),
        "line 1: policy='garvac' is unknown",
    ),
    "impossible setting": (setting(b"7"), "line 1: policy='gravac', setting epsilon"),
    "endless ladder": (
        line(1, b'"ladder":"exponential"', b'"ladder":[' + b"2.0," * 9000 + b"3.0]"),
        "line 1: policy='gravac', setting ladder",
    ),
    "rubbish for a state": (
        line(1, b'"policy_state":null', b'"policy_state":"{"'),
        "line 1: policy_state: not a state of",
    ),
}
REPAIRED: dict[str, tuple[Change, tuple[str, ...]]] = {
    "torn end": (lambda data: data[:-30], ("line 12 is torn ",)),
    "nothing but a torn line": (
        lambda data: data[:100],
        ("line 1 is torn (100 bytes without an end): left out",),
    ),
    "nul after a crash": (
        lambda data: data + bytes(500),
        ("line 13 is torn (500 bytes without an end): left out",),
    ),
    "CRLF": (lambda data: data.replace(b"\n", b"\r\n"), ("has CRLF line ends: ignored",)),
    "mark": (lambda data: b"\xef\xbb\xbf" + data, ("began with a byte order mark: ignored",)),
    "packed, cut short": (lambda data: gzip.compress(data)[:-12], ("the compressed stream ends early",)),
    "packed in two": (lambda data: gzip.compress(data[:5000]) + gzip.compress(data[5000:]), ()),
    "no newline at the end": (lambda data: data[:-1], ()),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def broken(path: Path, change: Change) -> None:
    data = change(make(path, windows=4))
    path.write_bytes(data)


@pytest.mark.parametrize("name", REFUSED)
def test_one_clear_error(path: Path, name: str) -> None:
    change, words = REFUSED[name]
    broken(path, change)
    with pytest.raises(TraceError, match=words) as caught:
        list(read_trace(path, verify=False))
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 600 + len(str(path))
    found = check(path)  # which never raises for a bad trace
    assert not found.ok
    assert any(caught.value.message in difference.message for difference in found.differences)


@pytest.mark.parametrize("name", DECIDED)
def test_what_only_replay_can_find(path: Path, name: str) -> None:
    change, words = DECIDED[name]
    broken(path, change)
    list(read_trace(path, verify=False))
    found = check(path)
    assert any(words in difference.message for difference in found.differences), [
        difference.message for difference in found.differences
    ]


@pytest.mark.parametrize("name", REPAIRED)
def test_repairs_are_noted(path: Path, name: str) -> None:
    change, notes = REPAIRED[name]
    broken(path, change)
    lines = read_trace(path)
    read = list(lines)
    assert len(lines.notes) == len(notes)
    assert all(noted.startswith(note) for noted, note in zip(lines.notes, notes, strict=True))
    whole = path.with_name("whole.jsonl")
    make(whole, windows=4)
    assert [one.record for one in read] == [one.record for one in read_trace(whole)][: len(read)]


def test_a_folder_and_nothing_at_all(tmp_path: Path, path: Path) -> None:
    for source, words in ((tmp_path, "Is a directory"), (path, "No such file")):
        with pytest.raises(TraceError, match=f"cannot be opened: {words}"):
            read_trace(source)
    path.write_bytes(b"")
    assert list(read_trace(path)) == []
    assert [difference.message for difference in check(path).differences] == ["the trace is empty"]


LIMITED = """
import resource, sys
from gravac.replays.replay import check
from gravac.traces import TraceError, read_trace
from pathlib import Path
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (32 << 20),) * 2)
for name in sys.argv[1:]:
    try:
        for _ in read_trace(name, verify=False): pass
    except TraceError as error:
        print(error.message)
    print(check(name).ok)
"""


@pytest.mark.distributed
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_is_bounded_whatever_comes(path: Path) -> None:
    """32 MB of address space beyond the imports suffice for 300 MB of one line, and for 30,000 compressed lines."""
    path.write_bytes(gzip.compress(bytes(300 << 20), 1))
    short = make(path.with_name("short.jsonl"), windows=1)
    many = path.with_name("many.gz")
    event = next(row for row in short.splitlines(keepends=True) if b'"kind":"event"' in row[:20])
    many.write_bytes(gzip.compress(short + event * 30_000, 1))
    command = [sys.executable, "-c", LIMITED, str(path), str(many)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"is longer than {MAX_LINE_BYTES} bytes", "False", "False"]
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
