"""Replay gives the same decisions, byte for byte, and any alteration of a trace is found (promise P7)."""

import gzip
import re
from pathlib import Path

import pytest

from gravac.fold import JobFold
from gravac.policies import POLICIES, parse
from gravac.protocol import Event, JobSpec
from gravac.replays.replay import check, replay
from gravac.traces import TraceError, TraceWriter, read_trace
from gravac.traces.line import encode
from tests.support.traces_made import Ticker, make, write
from tools.harness.cluster import Cluster, job_spec


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.jsonl"


def resealed(path: Path, line: int, old: bytes, new: bytes) -> None:
    """Alter a line and compute all digests again, as a forger would: only replay can find that."""
    lines, digest, pieces = list(read_trace(path)), "", []
    for item in lines:
        record = item.record
        if item.number == line:
            text = record.model_dump_json().encode()
            assert old in text
            record = type(record).model_validate_json(text.replace(old, new, 1))
        raw, digest = encode(record, item.time, digest)
        pieces.append(raw)
    path.write_bytes(b"".join(pieces))


@pytest.mark.parametrize(
    "policy", ["gravac", "static:cf=10,warmup_windows=2", "dense", "gravac:variant=paper", "warmup:windows=1"]
)
def test_a_trace_as_written_is_good(path: Path, policy: str) -> None:
    make(path, policy, windows=12)
    found = check(path)
    assert found.ok
    assert (found.windows, found.decisions, found.differences, found.notes) == (12, 13, [], [])


def test_gzip_is_checked_too(path: Path) -> None:
    path.write_bytes(gzip.compress(make(path)))
    assert check(path).ok


def test_every_digit_altered_is_found_and_its_window_named(path: Path) -> None:
    data = make(path, "gravac", windows=3)
    rows = data.splitlines()
    window_of = [-1, -1, 0, 0, 1, 1, 2, 2, 3, 3]  # the last two are an event and the end: after window 2
    assert len(rows) == len(window_of)
    tried, line = 0, 0
    for at, byte in enumerate(data):
        if byte == ord("\n"):
            line += 1
        if not chr(byte).isdigit():
            continue
        tried += 1
        path.write_bytes(data[:at] + (b"7" if byte != ord("7") else b"3") + data[at + 1 :])
        found = check(path)
        assert not found.ok, (line, data[at - 30 : at + 10])
        first = found.differences[0]
        assert (first.line, first.window) == (line + 1, window_of[line]), first
        where = "before window 0" if first.window < 0 else f"window {first.window}"
        assert first.message.startswith(f"{where}: line {line + 1}"), first
    assert tried > 800


def test_every_other_byte_altered_is_found_or_harmless(path: Path) -> None:
    data = make(path, "static:cf=10", windows=1)
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        found = check(path)
        if found.ok:  # only the newline after the very last line: nothing written was touched
            assert at == len(data) - 1
            assert found.notes


def test_a_number_altered_and_sealed_anew_is_found_where_it_decides(path: Path) -> None:
    make(path)
    resealed(path, 16, b'"cf_candidate":10.0', b'"cf_candidate":40.0')
    found = check(path)
    assert [difference.window for difference in found.differences] == [6]
    assert found.differences[0].message == (
        "window 6: line 16 records CF 40 (hold, hold), replay gives CF 10 (hold, hold): Holding CF 10: settled "
        "at 291 samples/s at gain 0.60, 175 useful."
    )


def test_a_reason_altered_and_sealed_anew_is_found(path: Path) -> None:
    make(path)
    resealed(path, 4, b"Dense baseline", b"Dense headline")
    (difference,) = check(path).differences
    assert difference.message.startswith("window 0: line 4 records reason Dense headline: 58.2 samples/s")


def test_a_measurement_altered_and_sealed_anew_is_found(path: Path) -> None:
    make(path)
    resealed(path, 7, b'"step_seconds_median":0.22', b'"step_seconds_median":0.92')
    found = check(path)
    assert found.differences[0].window == 2


def without(path: Path, *lines: int) -> None:
    rows = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(row for number, row in enumerate(rows, 1) if number not in lines))


def test_a_missing_window_is_named(path: Path) -> None:
    make(path)
    without(path, 7, 8)
    found = check(path)
    assert found.differences[0].window == 2
    assert any(d.message == "window 2 is missing before line 7" for d in found.differences)


def test_a_missing_decision_is_named(path: Path) -> None:
    make(path)
    without(path, 8)
    messages = [difference.message for difference in check(path).differences]
    assert "window 2 has no decision before line 8" in messages


def test_a_decision_without_its_window_is_named(path: Path) -> None:
    make(path)
    without(path, 7)
    messages = [difference.message for difference in check(path).differences]
    assert "window 2: line 7 is a decision without its window" in messages


@pytest.mark.parametrize("again", [(7,), (7, 8), (5, 6)])
def test_a_doubled_window_is_named(path: Path, again: tuple[int, ...]) -> None:
    pieces = [line.record for line in read_trace(_made(path))]
    at = 8
    doubled = pieces[:at] + [pieces[number - 1] for number in again] + pieces[at:]
    write(path.with_name("b.jsonl"), [tuple(doubled)])
    found = check(path.with_name("b.jsonl"))
    assert found.differences[0].window == (again[0] - 3) // 2
    assert "repeats it" in found.differences[0].message


def _made(path: Path) -> Path:
    make(path)
    return path


def test_an_announced_gap_is_no_fault(path: Path) -> None:
    cluster, fold = Cluster(), JobFold(job_spec(parse("gravac").spec()))
    with TraceWriter(path, Ticker()) as writer:
        writer.append(fold.spec, fold.start_decision)
        for window in (0, 1, 4, 5):
            report = cluster.report(window, fold.decision)
            if fold.judge(report) == "gap":
                writer.append(Event(kind="gap", window=2, message="windows 2 to 3 were lost"))
            writer.append(report, fold.decide(report))
    assert check(path).ok
    resealed(path, 7, b'"kind":"gap"', b'"kind":"note"')
    assert [d.message for d in check(path).differences] == ["windows 2 to 3 are missing before line 8"]


def test_a_restarted_trainer_is_followed(path: Path) -> None:
    cluster, fold = Cluster(), JobFold(job_spec(parse("gravac").spec()))
    with TraceWriter(path, Ticker()) as writer:
        writer.append(fold.spec, fold.start_decision)
        for incarnation in ("first", "second"):
            if incarnation == "second":
                fold.resume(fold.spec.model_copy(update={"incarnation": incarnation}))
                writer.append(fold.spec, Event(kind="restarted", window=None, message="again"))
            for _ in range(3):
                report = cluster.report(fold.next_window, fold.decision, incarnation=incarnation)
                writer.append(report, fold.decide(report))
    found = check(path)
    assert found.ok
    assert (found.windows, found.decisions) == (6, 7)


def test_windows_of_an_unregistered_start_are_named(path: Path) -> None:
    fold = JobFold(job_spec(parse("dense").spec()))
    stranger = Cluster().report(0, fold.decision, incarnation="second")
    write(path, [(fold.spec, fold.start_decision), (stranger, fold.decision)])
    assert (
        "window 0: line 3 is from a start of the trainer that is not registered"
        in check(path).differences[0].message
    )


def test_a_policy_changed_under_the_job_is_named(path: Path) -> None:
    spec = job_spec(parse("dense").spec())
    write(path, [(spec,), (spec.model_copy(update={"policy": parse("static:cf=2").spec()}),)])
    assert "line 2: policy: job 'job' runs" in check(path).differences[0].message


def test_an_unknown_policy_is_a_difference_not_a_crash(path: Path) -> None:
    spec = job_spec(parse("dense").spec())
    unknown = JobSpec.model_validate_json(spec.model_dump_json().replace('"dense"', '"later"'))
    write(path, [(unknown,)])
    assert check(path).differences[0].message == (
        f"before window 0: line 1: policy='later' is unknown; choose one of {', '.join(sorted(POLICIES))}"
    )
    with pytest.raises(TraceError, match="line 1: policy='later' is unknown"):
        replay(read_trace(path))


def test_an_empty_trace_proves_nothing(path: Path) -> None:
    path.write_bytes(b"")
    assert not check(path).ok


def test_a_crash_between_window_and_decision_is_a_note(path: Path) -> None:
    make(path, windows=3)
    without(path, 8, 9, 10)
    found = check(path)
    assert found.ok
    assert found.notes == ["the decision of the last window, 2, is not in the trace"]


def test_differences_are_bounded(path: Path) -> None:
    data = make(path, "dense", windows=150)
    path.write_bytes(re.sub(rb'"loss":2.25', b'"loss":2.26', data))
    found = check(path)
    assert len(found.differences) == 100
    assert found.notes == ["only the first 100 differences are listed"]


def test_replay_gives_rows(path: Path) -> None:
    make(path)
    result = replay(read_trace(path))
    assert [row.window for row in result.decisions] == [-1, *range(7)]
    assert result.differing == ()
    assert result.decisions[0].report is None
    assert result.decisions[3].report is not None
    assert result.decisions[3].recorded == result.decisions[3].replayed


def test_replay_with_another_policy_shows_both(path: Path) -> None:
    make(path)
    rows = replay(read_trace(path), parse("gravac:epsilon=0.5")).decisions
    # The same until CF 20, whose gain of 0.45 the stricter rule calls too strong.
    assert [(row.recorded.rule, row.replayed.rule) for row in rows[:5] if row.recorded] == [
        ("start", "start"),
        ("warmup", "warmup"),
        ("explore", "explore"),
        ("climb", "climb"),
        ("climb", "too_strong"),
    ]
    assert {row.replayed.cf_candidate for row in rows[4:]} == {10.0}


def test_replay_with_a_policy_the_run_did_not_follow_says_unusable(path: Path) -> None:
    make(path, "dense", windows=8)
    rows = replay(read_trace(path), parse("gravac")).decisions
    # The dense run measures the baseline; CF 10 was never sent.
    assert [row.replayed.rule for row in rows] == [
        "start",
        "warmup",
        "explore",
        *["extend"] * 2,
        "too_strong",
        *["hold"] * 3,
    ]
    assert {row.recorded.rule for row in rows[1:] if row.recorded} == {"fixed"}


def test_replay_with_starts_a_resumed_job_afresh(path: Path) -> None:
    fold = JobFold(job_spec(parse("gravac").spec()))
    spec = fold.spec.model_copy(update={"policy_state": fold.policy_state})
    write(path, [(spec, fold.start_decision)])
    assert replay(read_trace(path), parse("static:cf=3")).decisions[0].replayed.cf_candidate == 3.0


def test_a_path_a_stream_and_lines_replay_alike(path: Path) -> None:
    make(path)
    by_path = replay(path)
    with path.open("rb") as stream, read_trace(path) as lines:
        assert replay(stream).decisions == replay(lines).decisions == by_path.decisions
    assert len(by_path.decisions) > 1
    assert by_path.differing == ()
