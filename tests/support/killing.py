"""SIGKILL at random moments while windows stream in: no acknowledged window is lost or journaled twice.

``python -m tests.support.killing --kills 100`` does it a hundred times. Controllers are forked from a process that has
imported everything, so that a restart takes a fraction of a second.
"""

import argparse
import http.client
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from gravac.protocol import Decision, JobAnswer, Record, WindowAnswer, WindowReport
from gravac.replays.replay import check
from gravac.traces import parts, read_trace
from tools.harness.builders import Trainer, spec

PATIENCE_SECONDS = 60.0
JOBS = ("one", "two", "three")
PART_BYTES = 1 << 16
"""A new part every dozen windows, so that many kills hit the start or the compression of one."""
RETRYABLE = (408, 429, 503)


def serve(folder: str, started: Connection) -> None:
    """Run a controller and send its address to ``started``."""
    from gravac_controller.server.run import run
    from gravac_controller.settings import ControllerSettings

    settings = ControllerSettings(data_dir=Path(folder), port=0, journal_part_bytes=PART_BYTES)
    run(settings, with_parent=False, started=lambda url, _services: started.send(url))


class Forked:
    """A controller process, until ``kill`` or ``stop``."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["gravac_controller.server.run", "tests.support.killing"])
        here, there = context.Pipe(duplex=False)
        self._process = context.Process(target=serve, args=(str(folder), there), daemon=True)
        self._process.start()
        there.close()
        assert here.poll(PATIENCE_SECONDS), "the controller did not start"
        parts_of = urlsplit(here.recv())
        here.close()
        self.host, self.port = str(parts_of.hostname), int(parts_of.port or 0)

    def ask(self, method: str, path: str, record: Record | None = None) -> tuple[int, bytes]:
        """Send one request on a new connection. Raises OSError, HTTPException when the controller dies meanwhile."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_SECONDS)
        try:
            body = None if record is None else record.model_dump_json().encode()
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def kill(self) -> None:
        """Send SIGKILL, so that it cannot clean up."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join(PATIENCE_SECONDS)

    def stop(self) -> None:
        """Send SIGTERM and wait."""
        self._process.terminate()
        self._process.join(PATIENCE_SECONDS)


class Sender(threading.Thread):
    """One agent, which sends each window until it is acknowledged."""

    def __init__(self, job: str, current: Callable[[], Forked | None], stop: threading.Event) -> None:
        super().__init__()
        self.job, self._current, self._stop_asked = job, current, stop
        self.acknowledged: list[WindowReport] = []
        self.answers: list[Decision] = []
        self.failure: str | None = None
        self.retries = 0

    def run(self) -> None:
        """Report windows until asked to stop. Any other end is recorded in ``failure``."""
        try:
            self._report()
        except Exception as error:
            self.failure = f"{self.job}: {error!r}"

    def _report(self) -> None:
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

    def _send(self, path: str, record: Record) -> bytes | None:
        while not self._stop_asked.is_set():
            controller = self._current()
            try:
                if controller is None:
                    raise ConnectionError
                status, body = controller.ask("POST", path, record)
            except (OSError, http.client.HTTPException):
                self.retries += 1
                time.sleep(0.02)
                continue
            if status == 200:
                return body
            if status not in RETRYABLE:
                self.failure = f"{path}: {status} {body!r}"
            time.sleep(0.01)
        return None


@dataclass(frozen=True)
class Tally:
    """Counts of a run of kills."""

    kills: int
    windows: int
    retries: int
    parts: int
    seconds: float


def kill_again_and_again(folder: Path, kills: int, seed: int = 20) -> Tally:
    """Kill the controller while windows of three jobs stream in. Raises AssertionError for any lost window."""
    chance, began = random.Random(seed), time.monotonic()
    running: list[Forked | None] = [Forked(folder)]
    stop = threading.Event()
    senders = [Sender(job, lambda: running[0], stop) for job in JOBS]
    for sender in senders:
        sender.start()
    try:
        for number in range(kills):
            if number % 2:  # else it may be killed before its first answer
                progress(senders, 2)
            time.sleep(chance.uniform(0.0, 0.1))
            controller, running[0] = running[0], None
            assert controller is not None
            controller.kill()
            acknowledged = {sender.job: list(sender.acknowledged) for sender in senders}
            for job, windows in acknowledged.items():
                if windows:  # without one the journal may not exist yet
                    compare(folder, job, windows)
            running[0] = controller = Forked(folder)
            for job, windows in acknowledged.items():
                if windows:
                    status, body = controller.ask(
                        "GET", f"/v1/jobs/{job}/windows?limit=1&after={len(windows) - 2}"
                    )
                    assert status == 200, body
                    assert f'"window":{len(windows) - 1},'.encode() in body
        progress(senders, 2)
    finally:
        stop.set()
        for sender in senders:
            sender.join(PATIENCE_SECONDS)
        if running[0] is not None:
            running[0].stop()
    assert not any(sender.is_alive() for sender in senders)
    assert [sender.failure for sender in senders] == [None] * len(senders)
    for sender in senders:
        compare(folder, sender.job, sender.acknowledged)
        journal = folder / sender.job / parts.ACTIVE
        found = check(journal)
        assert found.ok, found.differences
        journaled = {
            line.record.window: line.record
            for line in read_trace(journal)
            if isinstance(line.record, Decision)
        }
        assert [journaled[decision.window] for decision in sender.answers] == sender.answers
    return Tally(
        kills=kills,
        windows=sum(len(sender.acknowledged) for sender in senders),
        retries=sum(sender.retries for sender in senders),
        parts=sum(1 + len(parts.full_parts(folder / job)) for job in JOBS),
        seconds=time.monotonic() - began,
    )


def progress(senders: list[Sender], windows: int) -> None:
    """Wait until each sender has this many more windows acknowledged.

    Raises AssertionError with the reason when a sender fails, or after ``PATIENCE_SECONDS``.
    """
    wanted = {sender.job: len(sender.acknowledged) + windows for sender in senders}
    until = time.monotonic() + PATIENCE_SECONDS
    while behind := {s.job: len(s.acknowledged) for s in senders if len(s.acknowledged) < wanted[s.job]}:
        failures = [sender.failure for sender in senders if sender.failure is not None]
        assert not failures, failures
        assert time.monotonic() < until, (
            f"not within {PATIENCE_SECONDS} s: acknowledged {behind}, wanted {wanted}"
        )
        time.sleep(0.002)


def compare(folder: Path, job: str, acknowledged: list[WindowReport]) -> None:
    """Compare the journal with what was acknowledged: all of it there, byte for byte, each window once, in order."""
    if not (folder / job).exists():
        assert not acknowledged
        return
    with tempfile.TemporaryDirectory() as copies:  # as a restarted controller would find it
        path = Path(copies) / job / parts.ACTIVE
        shutil.copytree(folder / job, path.parent)
        parts.repair(path)
        found = [line.record for line in read_trace(path) if isinstance(line.record, WindowReport)]
    assert max(Counter(report.window for report in found).values(), default=1) == 1
    assert [report.window for report in found] == list(range(len(found)))
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) - len(acknowledged) <= 1, "only the window in flight may be added"


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kills", type=int, default=100)
    arguments.add_argument("--seed", type=int, default=20)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        print(kill_again_and_again(Path(scratch) / "runs", given.kills, given.seed))
