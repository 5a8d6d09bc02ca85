"""SIGKILL at random moments while windows stream in: nothing acknowledged is lost, nothing is doubled."""

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from controller.builders import Trainer, spec
from controller.process import PATIENCE_SECONDS, Controller

from gravac.protocol import Decision, JobAnswer, WindowAnswer, WindowReport
from gravac.replay import check
from gravac.trace import read

KILLS = 12
JOBS = ("one", "two", "three")


class Sender(threading.Thread):
    """One agent: each window is sent until it is acknowledged; registers again when told it is unknown."""

    def __init__(self, job: str, current: Callable[[], Controller | None], stop: threading.Event) -> None:
        super().__init__()
        self.job, self._current, self._stop_asked = job, current, stop
        self.acknowledged: list[WindowReport] = []
        self.answers: list[Decision] = []
        self.failure: str | None = None
        self.retries = 0

    def run(self) -> None:
        trainer, decision = Trainer(job=self.job), self._register()
        while not self._stop_asked.is_set() and self.failure is None and decision is not None:
            report = trainer.report(decision)
            answer = self._send(f"/v1/jobs/{self.job}/windows", report)
            if answer is None:
                return
            decision = WindowAnswer.model_validate_json(answer).decision
            self.acknowledged.append(report)
            self.answers.append(decision)

    def _register(self) -> Decision | None:
        answer = self._send("/v1/jobs", spec(self.job))
        return None if answer is None else JobAnswer.model_validate_json(answer).decision

    def _send(self, path: str, record: object) -> bytes | None:
        while not self._stop_asked.is_set():
            controller = self._current()
            try:
                if controller is None:
                    raise ConnectionError
                answer = controller.ask("POST", path, record, seconds=PATIENCE_SECONDS)  # type: ignore[arg-type]
            except (OSError, http.client.HTTPException):
                self.retries += 1
                time.sleep(0.01)
                continue
            if answer.status == 200:
                return answer.body
            self.failure = f"{path}: {answer}"
        return None


def test_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    chance = random.Random(20)
    running: list[Controller | None] = [Controller(tmp_path / "runs")]
    stop = threading.Event()
    senders = [Sender(job, lambda: running[0], stop) for job in JOBS]
    for sender in senders:
        sender.start()
    try:
        for number in range(KILLS):
            if number % 2:  # else it may be killed before it has answered at all
                progress(senders, 3)
            time.sleep(chance.uniform(0.0, 0.15))
            controller, running[0] = running[0], None
            assert controller is not None
            controller.kill()
            acknowledged = {sender.job: list(sender.acknowledged) for sender in senders}
            for sender in senders:
                compare(tmp_path, sender.job, acknowledged[sender.job], whole=False)
            running[0] = Controller(tmp_path / "runs")
            for sender in senders:
                have = running[0].ask("GET", f"/v1/jobs/{sender.job}")
                if acknowledged[sender.job]:
                    assert have.json["windows"] >= len(acknowledged[sender.job])
    finally:
        stop.set()
        for sender in senders:
            sender.join(PATIENCE_SECONDS)
        if running[0] is not None:
            running[0].stop()
    assert [sender.failure for sender in senders] == [None] * len(senders)
    assert all(len(sender.acknowledged) > KILLS for sender in senders)
    assert sum(sender.retries for sender in senders) > 0
    for sender in senders:
        compare(tmp_path, sender.job, sender.acknowledged, whole=True)
        found = check(tmp_path / "runs" / sender.job / "journal.jsonl")
        assert found.ok, found.differences
        journaled = decisions(tmp_path, sender.job)
        assert [journaled[decision.window] for decision in sender.answers] == sender.answers


def progress(senders: list[Sender], windows: int) -> None:
    """Wait until each sender has so many more windows acknowledged; the slowest machine may take its time."""
    wanted = [len(sender.acknowledged) + windows for sender in senders]
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and any(
        len(sender.acknowledged) < least for sender, least in zip(senders, wanted, strict=True)
    ):
        time.sleep(0.005)


def compare(tmp_path: Path, job: str, acknowledged: list[WindowReport], *, whole: bool) -> None:
    """The journal against what was acknowledged: all of it there, byte for byte, each window once, in order."""
    path = tmp_path / "runs" / job / "journal.jsonl"
    if not path.exists():
        assert not acknowledged
        return
    found = [line.record for line in read(path) if isinstance(line.record, WindowReport)]
    assert max(Counter(report.window for report in found).values(), default=1) == 1
    assert [report.window for report in found] == list(range(len(found)))
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) - len(acknowledged) <= 1, "only the one in flight may be more"
    if whole:
        assert not any("torn" in note for note in read_notes(path))


def read_notes(path: Path) -> list[str]:
    trace = read(path)
    for _ in trace:
        pass
    return trace.notes


def decisions(tmp_path: Path, job: str) -> dict[int, Decision]:
    lines = read(tmp_path / "runs" / job / "journal.jsonl")
    return {line.record.window: line.record for line in lines if isinstance(line.record, Decision)}
