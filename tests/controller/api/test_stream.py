"""Event streams: a snapshot, then deltas; resumable; a slow reader costs nothing; they end with the server."""

import asyncio
import contextlib
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gravac.protocol import Decision, End, Event, JobAnswer, WindowAnswer
from tests.controller.jobs import test_job
from tests.support.in_process import InProcess
from tests.support.sse import Message, Reader, parse
from tools.harness.builders import Trainer, spec
from tools.harness.controller import PATIENCE_SECONDS, Controller

FAST = {"stream_interval_seconds": 0.0}


def register(controller: Controller, **changes: object) -> Decision:
    answer = controller.ask("POST", "/v1/jobs", spec(**changes))
    assert answer.status == 200, answer
    return JobAnswer.model_validate_json(answer.body).decision


def run(controller: Controller, trainer: Trainer, decision: Decision, windows: int = 1) -> Decision:
    for _ in range(windows):
        answer = controller.ask("POST", f"/v1/jobs/{trainer.job}/windows", trainer.report(decision))
        assert answer.status == 200, answer
        decision = WindowAnswer.model_validate_json(answer.body).decision
    return decision


@pytest.fixture
def fast(start: Callable[..., Controller]) -> Controller:
    """A controller that sends each message at once."""
    return start(limits=FAST)


def test_a_snapshot_then_changes(fast: Controller) -> None:
    trainer = Trainer()
    decision = run(fast, trainer, register(fast), 3)
    with Reader(fast) as reader:
        assert reader.status == 200
        assert reader.headers["content-type"].startswith("text/event-stream")
        first = reader.next()
        assert first is not None
        assert first.name == "snapshot"
        assert [window["report"]["window"] for window in first.data["windows"]] == [0, 1, 2]
        assert [decision["decision"]["window"] for decision in first.data["decisions"]] == [-1, 0, 1, 2]
        assert first.data["job"] == fast.ask("GET", "/v1/jobs/job").json
        decision = run(fast, trainer, decision)
        second = reader.next()
        assert second is not None
        assert second.name == "window"
        assert second.data["window"]["report"]["window"] == 3
        assert second.data["decision"]["decision"]["reason"] == decision.reason
        assert second.data["job"]["windows"] == 4
        assert second.id > first.id
        fast.ask("POST", "/v1/jobs/job/events", Event(kind="fallback", window=4, message="controller away"))
        third = reader.next()
        assert third is not None
        assert (third.name, third.data["event"]["event"]["kind"]) == ("event", "fallback")
        fast.ask("POST", "/v1/jobs/job/end", End(incarnation="first", windows=4, steps=200, message="done"))
        fourth = reader.next()
        assert fourth is not None
        assert (fourth.name, fourth.data["message"], fourth.data["job"]["state"]) == ("end", "done", "ended")
        register(fast, incarnation="second")
        fifth = reader.next()
        assert fifth is not None
        assert fifth.data["job"]["state"] == "running"


def test_resuming_sends_only_later_changes(fast: Controller) -> None:
    trainer = Trainer()
    decision = run(fast, trainer, register(fast), 3)
    with Reader(fast) as reader:
        first = reader.next()
    assert first is not None
    run(fast, trainer, decision, 3)
    with Reader(fast, after=str(first.id)) as reader:
        seen = [reader.next() for _ in range(3)]
    assert [row and row.name for row in seen] == ["window"] * 3
    assert [row and row.data["window"]["report"]["window"] for row in seen] == [3, 4, 5]
    with Reader(fast, after=str(seen[1] and seen[1].id)) as reader:
        again = reader.next()
    assert again == seen[2]


@pytest.mark.parametrize("after", ["999999", "nonsense", "-1", "1" * 100, "1.5", "0x1"])
def test_an_unknown_id_gets_a_snapshot(fast: Controller, after: str) -> None:
    run(fast, Trainer(), register(fast), 1)
    with Reader(fast, after=after) as reader:
        message = reader.next()
    assert message is not None
    assert message.name == "snapshot"


def test_resuming_over_a_restart_of_the_controller(start: Callable[..., Controller]) -> None:
    first = start(limits=FAST)
    trainer = Trainer()
    decision = run(first, trainer, register(first), 3)
    with Reader(first) as reader:
        snapshot = reader.next()
    assert snapshot is not None
    decision = run(first, trainer, decision)
    first.kill()
    second = start(port=first.port, limits=FAST)
    with Reader(second, after=str(snapshot.id)) as reader:
        delta = reader.next()
        assert delta is not None
        assert (delta.name, delta.data["window"]["report"]["window"]) == ("window", 3)
        run(second, trainer, decision)
        delta = reader.next()
        assert delta is not None
        assert delta.data["window"]["report"]["window"] == 4


def test_messages_are_spaced_but_none_is_lost(start: Callable[..., Controller]) -> None:
    controller = start(limits={"stream_interval_seconds": 1.0})
    trainer = Trainer()
    decision = register(controller)
    began = time.monotonic()
    with Reader(controller) as reader:
        assert reader.next() is not None
        run(controller, trainer, decision, 12)
        seen = [reader.next() for _ in range(12)]
        assert time.monotonic() - began > 0.95
    assert [row and row.data["window"]["report"]["window"] for row in seen] == list(range(12))


def test_a_reader_far_behind_gets_a_fresh_snapshot(open_app: Callable[..., InProcess]) -> None:
    app = open_app(stream_interval_seconds=0.0)
    decision = test_job.register(app).decision
    stream = app.services.streams.read(app.services.store.jobs["job"], None)

    async def read() -> list[Message]:
        seen = [await anext(stream)]
        test_job.run(app, Trainer(), decision, 80)  # while the reader is busy with its first message
        seen.append(await anext(stream))
        return [parse(message.decode().rstrip("\n")) for message in seen]

    first, second = asyncio.run(read())
    assert (first.name, len(first.data["windows"])) == ("snapshot", 0)
    assert (second.name, len(second.data["windows"])) == ("snapshot", 80)


def test_an_idle_stream_gets_pings_and_the_stale_state(start: Callable[..., Controller]) -> None:
    controller = start(limits=FAST | {"stream_ping_seconds": 0.2, "stale_seconds": 0.7})
    decision = register(controller)
    with Reader(controller) as reader:
        assert reader.next() is not None
        report = Trainer().report(decision, seconds=0.01)
        assert controller.ask("POST", "/v1/jobs/job/windows", report).status == 200
        message = reader.next()
        while message is not None and message.name == "job":  # silent for long enough before the window
            message = reader.next()
        assert message is not None
        assert (message.name, message.data["job"]["state"]) == ("window", "running")
        silence = reader.next()
        assert silence is not None
        assert (silence.name, silence.id, silence.data["job"]["state"]) == ("job", None, "stale")
        ping = reader.next(comments=True)
        assert ping is not None
        assert (ping.name, ping.data) == ("", None)


def test_a_reader_that_never_reads_does_not_hold_up_others(start: Callable[..., Controller]) -> None:
    controller = start(limits=FAST | {"stall_seconds": 2.5})
    trainer = Trainer()
    decision = run(controller, trainer, register(controller), 100)
    deaf = deaf_reader(controller)
    with deaf, Reader(controller) as reader:
        assert reader.next() is not None
        for _ in range(150):
            decision = run(controller, trainer, decision)
            assert reader.next() is not None
        until = time.monotonic() + PATIENCE_SECONDS / 4  # Linux itself gives up after about 60 s
        while clients(controller) != 1 and time.monotonic() < until:
            time.sleep(0.1)
        assert clients(controller) == 1  # the deaf one was let go
    assert "ERROR" not in controller.log.read_text()


def test_a_slow_reader_gets_everything(start: Callable[..., Controller]) -> None:
    """It takes longer than the limit for what is waiting, but takes something within it."""
    controller = start(limits=FAST | {"stall_seconds": 2.5})
    run(controller, Trainer(), register(controller), 300)
    began = time.monotonic()
    received = b""
    with deaf_reader(controller) as slow:
        slow.settimeout(PATIENCE_SECONDS)
        while not received.endswith(b"\n\n\r\n"):
            taken = b""
            while len(taken) < 40_000 and not (received + taken).endswith(b"\n\n\r\n"):
                piece = slow.recv(4096)
                assert piece, f"closed after {len(received + taken)} bytes"
                taken += piece
            received += taken
            time.sleep(0.2)
    assert time.monotonic() - began > 3
    assert received.count(b'"report"') >= 300


def test_two_hundred_tabs_and_two_slow_ones_do_not_delay_agents(
    start: Callable[..., Controller],
) -> None:
    """All readers get everything; memory grows by the socket buffers at most; agents are answered meanwhile."""
    controller = start(limits=FAST)
    trainer = Trainer()
    decision = run(controller, trainer, register(controller), 20)
    before = memory_mb(controller.process.pid)
    slow = deaf_reader(controller)
    with contextlib.ExitStack() as stack:
        stack.enter_context(deaf_reader(controller))
        stack.enter_context(slow)
        tabs = [stack.enter_context(Reader(controller)) for _ in range(200)]
        assert {reader.status for reader in tabs} == {200}
        assert all(reader.next() is not None for reader in tabs)
        for _ in range(30):
            decision = run(controller, trainer, decision)
            slow.recv(512)
        for reader in tabs:
            heard = [reader.next() for _ in range(30)]
            assert [one and one.data["window"]["report"]["window"] for one in heard] == list(range(20, 50))
        assert clients(controller) == 202
        assert memory_mb(controller.process.pid) - before < 202 * 0.25
    assert controller.ask("GET", "/v1/jobs/job").json["windows"] == 50


def memory_mb(pid: int) -> float:
    """Resident memory now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def deaf_reader(controller: Controller) -> socket.socket:
    """A client that asks for the stream and never reads it."""
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect((controller.host, controller.port))
    deaf.sendall(b"GET /v1/jobs/job/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return deaf


def clients(controller: Controller) -> int:
    """Return how many connections it has."""
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return sum(
        int(here.split(":")[1], 16) == controller.port and state == "01" for _, here, _, state, *_ in lines
    )


def test_closed_streams_are_not_counted(fast: Controller) -> None:
    register(fast)
    readers = [Reader(fast) for _ in range(50)]
    assert all(reader.next() is not None for reader in readers)
    assert clients(fast) == 50
    for reader in readers:
        reader.close()
    until = time.monotonic() + PATIENCE_SECONDS
    while clients(fast) and time.monotonic() < until:
        time.sleep(0.05)
    assert clients(fast) == 0


@pytest.mark.alone
def test_shutdown_with_open_streams_takes_less_than_two_seconds(start: Callable[..., Controller]) -> None:
    """Return the best of three, because the machine may be busy."""
    took = []
    while not took or (len(took) < 3 and took[-1] >= 2):
        controller = start(limits=FAST)
        run(controller, Trainer(), register(controller), 100)
        readers = [Reader(controller) for _ in range(50)]
        assert all(reader.next() is not None for reader in readers)
        with deaf_reader(controller):
            took.append(controller.stop())
        for reader in readers:
            reader.close()
        shutil.rmtree(controller.data_dir)
    assert took[-1] < 2


def test_shutdown_does_not_wait_for_open_streams(fast: Controller) -> None:
    run(fast, Trainer(), register(fast), 100)
    deaf = deaf_reader(fast)
    readers = [Reader(fast) for _ in range(5)]
    assert all(reader.next() is not None for reader in readers)
    assert fast.stop() < 10  # about one
    assert fast.process.returncode == 0
    for reader in readers:
        assert reader.next() is None
        assert reader.ended  # a proper end, not a cut
        reader.close()
    deaf.close()
    assert "Traceback" not in fast.log.read_text()
    assert "CancelledError" not in fast.log.read_text()
