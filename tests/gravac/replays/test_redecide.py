"""Another policy on recorded windows: where it differs, and from where on the comparison is not what would have
been."""

from pathlib import Path
from typing import Any

import pytest

from gravac.policies import StaticPolicy, parse
from gravac.protocol import Decision, JobSpec, WindowReport
from gravac.replays.redecide import gate, redecide
from gravac.replays.replay import replay
from gravac.traces import TraceError, read_trace
from tests.support.traces_made import make, records, write
from tools.harness.cluster import Cluster


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "a.jsonl"
    make(made, "gravac", windows=8)
    return made


def test_the_recorded_policy_differs_nowhere(path: Path) -> None:
    found = redecide(read_trace(path))
    assert (found.windows, found.differing, found.first, found.notes) == (8, (), None, ())
    assert found.policy == found.recorded_policy


def test_words_and_epsilon_alone_are_no_difference(path: Path) -> None:
    found = redecide(read_trace(path), settings={"epsilon": 0.31})
    assert found.policy.settings["epsilon"] == 0.31
    assert found.policy.settings["omega"] == found.recorded_policy.settings["omega"]
    assert found.differing == ()


def test_a_stricter_epsilon_parts_where_it_first_sends_otherwise(path: Path) -> None:
    """CF 20 has gain 0.45: the recorded policy climbs on, one with ε 0.5 does not; CF 10 has gain 0.6 under both."""
    found = redecide(read_trace(path), settings={"epsilon": 0.5})
    recorded = {
        line.record.window: line.record for line in read_trace(path) if isinstance(line.record, Decision)
    }
    at = next(window for window, one in recorded.items() if one.cf_candidate == 20.0)
    assert found.first is not None
    # Both say "try 20", and the gate of the stricter one would not have let it pass in the window that follows.
    assert found.first.window == at
    assert found.first.other.cf_candidate == 20.0
    assert (found.first.sent, found.first.other_sent) == (
        20.0,
        10.0 if recorded[at].cf_minimum == 10.0 else 1.0,
    )
    assert found.first == found.differing[0]


def test_only_windows_up_to_the_first_difference_are_those_of_the_other_policy(
    path: Path, tmp_path: Path
) -> None:
    """A run that really followed the other policy is the same up to there, and not after."""
    other = tmp_path / "other.jsonl"
    write(other, records(parse("gravac:epsilon=0.5"), 8, Cluster()))
    found = redecide(read_trace(path), settings={"epsilon": 0.5})
    assert found.first is not None

    def decisions(source: Path, policy: str) -> list[tuple[float, float]]:
        rows = replay(read_trace(source), parse(policy)).decisions
        return [(row.replayed.cf_minimum, row.replayed.cf_candidate) for row in rows]

    exact = found.first.window + 2  # the start, and the windows up to that one
    assert decisions(path, "gravac:epsilon=0.5")[:exact] == decisions(other, "gravac:epsilon=0.5")[:exact]
    reports = [
        [line.record for line in read_trace(one) if isinstance(line.record, WindowReport)]
        for one in (path, other)
    ]
    assert [one.cf for one in reports[0]][: exact - 1] == [one.cf for one in reports[1]][: exact - 1]


def test_another_smoothing_would_have_seen_other_gains(path: Path) -> None:
    found = redecide(read_trace(path), settings={"smoothing": 0.5})
    assert found.first is None
    assert "The ranks measure gains by the setting smoothing" in found.caution
    other = redecide(read_trace(path), settings={"denominator": "gradient"})
    assert "The ranks measure gains by the setting denominator" in other.caution
    assert "throughout" in redecide(read_trace(path), settings={"smoothing": 0.1}).caution


def test_another_policy_differs_from_the_start(path: Path) -> None:
    found = redecide(read_trace(path), "static:cf=20")
    assert found.first is not None
    assert (found.first.window, found.first.measured_cf) == (-1, None)
    assert {pair.other.cf_candidate for pair in found.differing} == {20.0}
    assert redecide(read_trace(path), StaticPolicy(cf=20.0)).differing == found.differing
    assert redecide(read_trace(path), "static", {"cf": 20.0}).policy == found.policy


def test_the_gate_is_only_told_where_the_run_measured_it(path: Path) -> None:
    report = next(
        line.record
        for line in read_trace(path)
        if isinstance(line.record, WindowReport) and line.record.gains
    )
    known = report.gains[0]
    decision = next(line.record for line in read_trace(path) if isinstance(line.record, Decision))

    def sent(minimum: float, candidate: float, epsilon: float) -> float | None:
        changes = {"cf_minimum": minimum, "cf_candidate": candidate, "epsilon": epsilon}
        return gate(decision.model_copy(update=changes), report)

    assert sent(known.cf, known.cf, known.gain) == known.cf
    assert sent(known.cf, known.cf, known.gain + 0.01) == 1.0
    assert sent(1.0, 1.0, 0.9) == 1.0
    assert sent(known.cf, 777.0, 0.0) is None


@pytest.mark.parametrize(
    ("policy", "settings", "words"),
    [
        (None, {"epsilno": 0.5}, "has no setting 'epsilno'"),
        (None, {"epsilon": 7}, "epsilon: .*at most 1"),
        ("later", None, "policy='later' is unknown"),
        ("static:cf", None, "must be written setting=value"),
    ],
)
def test_an_unknown_policy_is_named(
    path: Path, policy: str | None, settings: dict[str, Any] | None, words: str
) -> None:
    with read_trace(path) as lines, pytest.raises(ValueError, match=words):
        redecide(lines, policy, settings)


def test_bad_traces_are_trace_errors(path: Path) -> None:
    path.write_bytes(b"")
    with pytest.raises(TraceError, match="the trace is empty"):
        redecide(read_trace(path))


def test_what_is_missing_is_noted(path: Path) -> None:
    lines = list(read_trace(path))
    spec = lines[0].record
    assert isinstance(spec, JobSpec)
    cut = path.with_name("b.jsonl")
    write(cut, [tuple(line.record for line in lines if line.number not in (7, 8))])
    found = redecide(read_trace(cut))
    assert found.notes == ("window 2 is missing before line 7",)


def test_a_path_and_lines_are_redecided_alike(path: Path) -> None:
    assert redecide(path, "static:cf=4") == redecide(read_trace(path), "static:cf=4")
    with pytest.raises(
        ValueError, match="policy='best' is unknown"
    ):  # and the file is closed: warnings are errors
        redecide(path, "best")
