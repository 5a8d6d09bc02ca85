"""A journal is resumed where a crash, or another version, left it."""

from pathlib import Path

import pytest

from gravac.policies import parse
from gravac.protocol import Decision
from gravac.replays.follow import Follower
from gravac.replays.replay import check
from gravac.traces import TraceWriter, read_trace
from tests.support.traces_made import Ticker, records, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.jsonl"


def test_a_controller_takes_up_its_journal(path: Path) -> None:
    pieces = records(parse("gravac"), 5)
    write(path, pieces[:-2])
    follower = Follower(adopt=True)
    with TraceWriter(path, Ticker(), visit=follower.push):
        pass
    assert follower.fold is not None
    assert follower.missing is None
    assert (follower.fold.next_window, follower.fold.decision) == (5, pieces[5][1])


def test_a_decision_lost_in_a_crash_is_made_again(path: Path) -> None:
    pieces = records(parse("gravac"), 5)
    write(path, [*pieces[:5], pieces[5][:1]])
    follower = Follower(adopt=True)
    with TraceWriter(path, Ticker(), visit=follower.push) as writer:
        assert follower.missing == pieces[5][1]
        assert follower.missing is not None
        writer.append(follower.missing)
    assert check(path).ok


def test_a_journal_of_another_version_is_gone_on_from_as_recorded(path: Path) -> None:
    pieces = records(parse("gravac"), 4)
    last = pieces[4][1]
    assert isinstance(last, Decision)
    other = last.model_copy(update={"epoch": 7, "cf_minimum": 40.0, "cf_candidate": 40.0})
    write(path, [*pieces[:4], (pieces[4][0], other)])
    follower = Follower(adopt=True)
    for line in read_trace(path):
        follower.push(line)
    assert follower.fold is not None
    assert follower.fold.decision == other
    assert not check(path).ok
