"""The chaos test's own checks: each finds what it is there for, and says nothing where all is well."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gravac.fold import JobFold
from gravac.protocol import Decision, End, Event, WindowReport
from gravac.traces import TraceWriter
from tools.chaos import checks
from tools.chaos.events import LIES
from tools.chaos.journals import Journal, journals
from tools.chaos.launch import Launch, TrainingRecord
from tools.chaos.peers.watch import Watch, most_within
from tools.harness.builders import Trainer, spec

TOKEN = "0123456789abcdef0123456789abcdef"


class Handover:
    """A job of ten windows as it was handed_in in, and its journal, which a test spoils."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = TrainingRecord(Launch(folder, "launch0", 2, {}, {}), outcome="finished")
        fold, trainer = JobFold(spec()), Trainer()
        self.records: list[tuple[WindowReport, Decision]] = []
        for _ in range(10):
            report = trainer.report(fold.decision)
            self.records.append((report, fold.decide(report)))
        handed_in = "".join(report.model_dump_json() + "\n" for report, _ in self.records)
        self.record.launch.handed_in.write_text(handed_in)
        self.record.launch.file(0, "log").write_text("")
        self.record.launch.file(0, "notes").write_text('{"incarnation": "first"}\n')

    def books(self, keep: Callable[[int], int] = lambda number: 1, *more: Event | End) -> list[Journal]:
        """Write the journal, each window so many times, and read it."""
        fold = JobFold(spec())
        with TraceWriter(self.folder / "runs" / "job" / "journal.jsonl", time.time) as writer:
            writer.append(spec(), fold.decision, *more)
            for report, decision in self.records:
                for _ in range(keep(report.window)):
                    writer.append(report, decision)
        return journals(self.folder / "runs")

    def log(self, text: str) -> None:
        self.record.launch.file(0, "log").write_text(text)


@pytest.fixture
def handover(tmp_path: Path) -> Handover:
    return Handover(tmp_path)


def gap(first: int, last: int) -> Event:
    return Event(kind="gap", window=last + 1, message=f"windows {first} to {last} never arrived")


def test_a_whole_journal_is_right(handover: Handover) -> None:
    books = handover.books(
        lambda number: 1, End(incarnation="first", windows=10, steps=500, message="finished")
    )
    assert books[0].wrong == []
    assert checks.windows(handover.record, books, {0, 50}) == []
    assert checks.ended(handover.record, books) == []


def test_a_lost_window_is_found(handover: Handover) -> None:
    books = handover.books(lambda number: number != 4)
    assert any("windows range(4, 5) are missing" in sentence for sentence in books[0].wrong)
    (sentence,) = checks.windows(handover.record, books, set())
    assert "windows 4 of 10" in sentence
    assert "no log says so" in sentence


def test_one_that_was_acknowledged_is_worse(handover: Handover) -> None:
    acknowledged = {handover.records[4][0].first_step}
    found = checks.windows(handover.record, handover.books(lambda number: number != 4), acknowledged)
    assert any("were acknowledged and are not in the journal" in sentence for sentence in found)


def test_what_the_agent_announced_is_not_lost(handover: Handover) -> None:
    books = handover.books(lambda number: number < 8)
    handover.log(
        "1 ERROR gravac.agent: the journal of job job lacks 2 windows that were never acknowledged, 1 events\n"
    )
    assert checks.windows(handover.record, books, set()) == []
    assert checks.ended(handover.record, books) == []
    handover.log(
        "1 ERROR gravac.agent: the journal of job job lacks 1 windows that were never acknowledged\n"
    )
    assert checks.windows(handover.record, books, set())


def test_a_killed_rank_0_may_lose_its_last_windows_only(handover: Handover) -> None:
    handover.record.outcome, handover.record.killed = "killed", 0
    assert checks.windows(handover.record, handover.books(lambda number: number < 7), set()) == []
    (handover.folder / "runs" / "job" / "journal.jsonl").unlink()
    assert checks.windows(handover.record, handover.books(lambda number: number != 7), set())


def test_a_doubled_window_is_found(handover: Handover) -> None:
    books = handover.books(lambda number: 2 if number == 3 else 1)
    assert any(sentence.startswith("doubled: journal") for sentence in books[0].wrong)
    assert any(sentence.startswith("replay:") for sentence in books[0].wrong)
    assert any(
        sentence.startswith("doubled: launch0") for sentence in checks.windows(handover.record, books, set())
    )


def test_an_end_that_is_missing_is_found(handover: Handover) -> None:
    assert checks.ended(handover.record, handover.books())


def test_ranks_that_differ_are_found(handover: Handover) -> None:
    handover.record.launch.file(0, "notes").write_text('{"step": 20, "fingerprint": "a"}\n')
    handover.record.launch.file(1, "notes").write_text('{"step": 20, "fingerprint": "b"}\n{"step": 4')
    assert checks.equal(handover.record) == ["ranks differ: launch0: from step 20 of 20"]


def test_a_storm_is_found() -> None:
    assert most_within([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], 1.0) == 5
    calm, storm = Watch("calm"), Watch("storm")
    calm.requests = [number * 0.2 for number in range(50)]
    storm.requests = [number * 0.1 for number in range(50)]
    assert calm.storms() == []
    assert "within 0.9 s" in storm.storms()[0]


@pytest.mark.parametrize(
    "seen",
    [
        TOKEN.encode(),
        b"GET / HTTP/1.1\r\nAUTHORIZATION: x",
        b"POST /v1/jobs HTTP/1.1\r\n\r\n",
        b'{"last_step":4}',
    ],
)
def test_a_leak_is_found(seen: bytes) -> None:
    watch = Watch("squatter")
    watch.saw(b"GET /v1/proof?challenge=00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert watch.leaks(frozenset({TOKEN})) == []
    watch.saw(seen)
    assert watch.leaks(frozenset({TOKEN}))


FLOOD = "".join(f"{number} WARNING gravac.agent: again\n" for number in range(30))


@pytest.mark.parametrize(
    "text",
    [
        "1 WARNING gravac.agent: \x1b[31mred\n",
        "Traceback (most recent call last):\n  x\nValueError: y\n",
        FLOOD,
    ],
)
def test_a_bad_log_is_found(handover: Handover, text: str) -> None:
    assert checks.log(handover.record) == []
    handover.log(text)
    assert checks.log(handover.record)


def test_there_are_many_kinds_of_lies() -> None:
    assert len({lie.name for lie in LIES}) == len(LIES) >= 40
