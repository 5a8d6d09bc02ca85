"""Rank 0's desk and what it meets: liars, squatters, answers that break off. Nothing is lost and nobody is obeyed."""

import contextlib
import itertools
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gravac_agent.reporting.answers import Checker
from gravac_agent.reporting.client import Connection, NoAnswer, Refused
from gravac_agent.reporting.remote import RemoteDesk

from gravac.policies import StaticPolicy
from gravac.protocol import Decision, End, Event, WindowReport
from gravac.traces.replay import check
from gravac.traces.trace import read
from gravac_agent.reporting.launcher import ControllerProcess
from tests.support.lies import LIES
from tests.support.peer import Handler, Peer, eventually, serving
from tests.support.policies import Cluster, job_spec

TOKEN = "a-token-of-the-job-0123456789abcdef"
SPEC = job_spec(StaticPolicy(cf=10).spec())
DECISION = StaticPolicy(cf=10).start().decision
MOST_REQUESTS_A_SECOND = 5


@pytest.fixture
def real_pauses() -> None:
    """For the tests that count requests."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Pauses do not grow, and are short where nothing depends on how long they are."""
    if "real_pauses" not in request.fixturenames:
        monkeypatch.setattr("gravac_agent.reporting.backoff.FIRST_SECONDS", 0.1)
        monkeypatch.setattr("gravac_agent.reporting.remote.FIRST_SECONDS", 0.1)
    monkeypatch.setattr("gravac_agent.reporting.backoff.MAX_SECONDS", 1.0)


def desk(peer: Peer, token: str | None = TOKEN, seconds: float = 2.0) -> RemoteDesk:
    return RemoteDesk(
        peer.spec, process=None, url=peer.url, token=token, request_seconds=seconds, fallback_windows=3
    )


def report(window: int, decision: Decision = DECISION) -> WindowReport:
    return Cluster().report(window, decision)


def end(windows: int) -> End:
    return End(incarnation=SPEC.incarnation, windows=windows, steps=50 * windows, message="finished")


def journaled(path: Path) -> list[int]:
    """The windows of a journal that may be being written."""
    try:
        return [line.record.window for line in read(path) if isinstance(line.record, WindowReport)]
    except (OSError, ValueError):
        return []


def test_no_lie_is_obeyed_and_no_window_lost(real_pauses: None, caplog: pytest.LogCaptureFixture) -> None:
    """Every kind at once, a desk and a server each: dense after three windows, few requests, one clear line."""
    with contextlib.ExitStack() as stack:
        peers = {kind: stack.enter_context(serving(SPEC, TOKEN)) for kind in LIES}
        desks = {kind: desk(peer, seconds=1.0) for kind, peer in peers.items()}
        for kind, one in desks.items():
            assert one.wait_ready(60), kind
            one.put(report(0))
        for kind, peer in peers.items():
            eventually(lambda peer=peer: peer.windows == [0])
            assert desks[kind].directive.cf_candidate == 10.0
            peer.lie = LIES[kind]
        for kind, one in desks.items():
            for window in range(1, 5):
                one.put(report(window))
            assert one.directive.phase == "fallback", kind
            assert one.directive.cf_candidate == one.directive.cf_minimum == 1.0
        eventually(lambda: all(len(peer.lied) >= 5 for kind, peer in peers.items() if kind not in SLOW))
        for kind, one in desks.items():
            assert one.directive.phase == "fallback", kind
            assert one.directive.cf_candidate == 1.0, kind
            assert peers[kind].windows == [0], kind
            assert peers[kind].busiest_second() <= MOST_REQUESTS_A_SECOND, kind
        lines = [record.getMessage() for record in caplog.records if "no valid answer" in record.getMessage()]
        for kind, peer in peers.items():
            said = [line for line in lines if peer.url in line]
            assert 1 <= len(said) <= 4, (kind, said)
            peer.lie = None
        assert all(line.isprintable() for line in lines)
        for status in (200, 302, 401, 403, 409, 422, 503):
            assert any(f"answered {status}" in line for line in lines), status
        for kind, peer in peers.items():
            eventually(lambda peer=peer: peer.windows == [0, 1, 2, 3, 4])
            one = desks[kind]
            eventually(lambda one=one: one.directive.phase == "hold")
            assert one.directive.cf_candidate == 10.0, kind
            one.close(end(5))
            assert [(found.windows, found.message) for found in peer.ends] == [(5, "finished")], kind
            assert [event.kind for event in peer.events] == ["fallback", "recovered"], kind


SLOW = {"drips", "silent", "endless head", "endless body"}
"""Each of these takes the whole deadline of a request."""


def test_a_server_that_lies_from_the_first_request_gets_few_requests_and_nothing_else(
    real_pauses: None,
) -> None:
    """0.1 asked 1,145 times in 1.5 s where a login page answered the registration."""
    with serving(SPEC, TOKEN) as peer:
        peer.lie = LIES["200 with HTML"]
        one = desk(peer)
        one.note(Event(kind="note", window=None, message="kept"))
        for window in range(4):
            one.put(report(window))
        eventually(lambda: len(peer.lied) >= 6)
        assert peer.busiest_second() <= MOST_REQUESTS_A_SECOND
        peer.lie = None
        eventually(lambda: peer.windows == [0, 1, 2, 3])
        one.close(end(4))
        assert [event.kind for event in peer.events] == ["note", "fallback", "recovered"]


def test_who_does_not_prove_the_token_gets_nothing() -> None:
    with serving(SPEC, TOKEN) as peer:
        peer.proves = False
        one = desk(peer)
        for window in range(4):
            one.put(report(window))
        eventually(lambda: len(peer.asked) >= 3)
        assert all(asked.startswith("GET /v1/proof?challenge=") for _, asked in peer.asked)
        assert TOKEN.encode() not in peer.seen
        assert b"uthorization" not in peer.seen
        assert not one.wait_ready(0)
        peer.proves = True
        eventually(lambda: peer.windows == [0, 1, 2, 3])
        one.close(end(4))


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ControllerProcess]:
    process = ControllerProcess(tmp_path, SPEC.job, 0)
    yield process
    process.stop()


def own_desk(process: ControllerProcess, seconds: float = 2.0) -> RemoteDesk:
    return RemoteDesk(
        SPEC, process=process, url=None, token=None, request_seconds=seconds, fallback_windows=3
    )


def test_a_squatter_on_a_dead_controllers_port_learns_nothing(own: ControllerProcess, tmp_path: Path) -> None:
    """0.1 gave it the token and 80 windows, and obeyed its CF for 19.5 s."""
    one = own_desk(own)
    assert one.wait_ready(150)
    assert own.pid is not None
    port = own.port
    os.kill(own.pid, signal.SIGKILL)
    with _once_free(port) as squatter:
        squatter.lie = LIES["huge cf"]
        for window in range(5):
            one.put(report(window))
            assert one.directive.cf_candidate in (1.0, 10.0)
            time.sleep(0.05)
        eventually(lambda: journaled(tmp_path / SPEC.job / "journal.jsonl") == [0, 1, 2, 3, 4])
        assert own.token.encode() not in squatter.seen
        assert b"uthorization" not in squatter.seen
        assert b"levels" not in squatter.seen
        assert own.port != port
        assert one.url == own.url
        one.close(end(5))
    assert check(tmp_path / SPEC.job / "journal.jsonl").ok


@contextlib.contextmanager
def _once_free(port: int) -> Iterator[Peer]:
    for _ in range(200):
        try:
            with serving(SPEC, None, port) as squatter:
                yield squatter
            return
        except OSError:
            time.sleep(0.01)
    raise AssertionError("the port of a dead controller stays taken")


def test_killed_just_before_the_end_nothing_is_lost(own: ControllerProcess, tmp_path: Path) -> None:
    """0.1 lost the last three windows and the end, and span for 4 s."""
    one = own_desk(own)
    assert one.wait_ready(150)
    assert own.pid is not None
    os.kill(own.pid, signal.SIGKILL)
    for window in range(3):
        one.put(report(window))
    one.close(end(3))
    records = [line.record for line in read(tmp_path / SPEC.job / "journal.jsonl")]
    assert [record.window for record in records if isinstance(record, WindowReport)] == [0, 1, 2]
    assert isinstance(records[-1], End)


@pytest.mark.alone
def test_a_stopped_controller_is_replaced_at_the_end(own: ControllerProcess, tmp_path: Path) -> None:
    """0.1 took 11 s to close, and lost what was left. A process that is stopped cannot be ended but by SIGKILL."""
    one = own_desk(own, seconds=1.0)
    assert one.wait_ready(150)
    assert own.pid is not None
    stopped = own.pid
    os.kill(stopped, signal.SIGSTOP)
    one.put(report(0))
    began = time.monotonic()
    one.close(end(1))
    assert time.monotonic() - began < 8.0
    assert journaled(tmp_path / SPEC.job / "journal.jsonl") == [0]
    with pytest.raises(ProcessLookupError):
        os.kill(stopped, 0)


def test_a_taken_port_is_replaced_by_a_free_one(
    own: ControllerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        own.port = taken.getsockname()[1]
        url = own.start(60)
        assert own.port != taken.getsockname()[1]
        assert f"port {taken.getsockname()[1]} is taken; the live page is at {url} now" in caplog.text


@pytest.mark.parametrize("taken_later", [True, False])
def test_a_failed_start_is_repeated_only_where_the_port_was_taken(
    own: ControllerProcess,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    taken_later: bool,
) -> None:
    """Another program can take the port between the check and the start. A controller that fails for another reason
    would fail again, and its log would be about a port."""
    answers, ports = iter([False, taken_later]), []

    def start(port: int, until: float) -> str:
        ports.append(port)
        if port:
            raise OSError("the controller did not start: no space left")
        return "http://127.0.0.1:4321"

    monkeypatch.setattr("gravac_agent.reporting.launcher._is_taken", lambda port: next(answers))
    monkeypatch.setattr(own, "_start", start)
    own.port = 1234
    if taken_later:
        assert own.start(60) == "http://127.0.0.1:4321"
        assert "port 1234 is taken" in caplog.text
    else:
        with pytest.raises(OSError, match="no space left"):
            own.start(60)
        assert "taken" not in caplog.text
    assert ports == ([1234, 0] if taken_later else [1234])


def test_what_the_controller_writes_reaches_the_log_without_escapes(tmp_path: Path) -> None:
    """Its own log may hold anything: an exception's text, a file's name."""
    folder = tmp_path / "\x1b[31mred\nline"
    folder.write_text("not a folder")
    with pytest.raises(OSError, match=r"did not start|File exists|Not a directory") as caught:
        ControllerProcess(folder, SPEC.job, 0).start(60)
    data_dir = tmp_path / "runs"
    (data_dir / SPEC.job).mkdir(parents=True)
    (data_dir / SPEC.job / "\x1b[31mx").touch()
    process = ControllerProcess(data_dir, "\x1b[31mno name", 0)
    with pytest.raises(OSError, match="did not start") as caught:
        process.start(60)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("kept", [0, 1, 60, 200])
def test_an_answer_that_breaks_off_is_no_answer(kept: int) -> None:
    """0.1 read the body of a registration as empty where the controller died after the head, and dropped a window."""

    def cut(handler: Handler, body: bytes) -> None:
        text = handler.truth(body).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
        handler.wfile.write(head.encode() + text[:kept])
        handler.close_connection = True

    with serving(SPEC, TOKEN) as peer:
        peer.lie = cut
        one = desk(peer)
        for window in range(2):
            one.put(report(window))
        eventually(lambda: len(peer.lied) >= 3)
        peer.lie = None
        one.put(report(2))
        eventually(lambda: peer.windows == [0, 1, 2])  # none lost, none taken twice
        one.close(end(3))
        assert [found.windows for found in peer.ends] == [3]


def test_a_lost_answer_is_asked_for_again_and_counts_once() -> None:
    lies = itertools.count()

    def lose(handler: Handler, body: bytes) -> None:
        handler.truth(body)
        if next(lies) > 2:
            handler.server.lie = None
        handler.close_connection = True

    with serving(SPEC, TOKEN) as peer:
        one = desk(peer)
        assert one.wait_ready(150)
        peer.lie = lose
        one.put(report(0))
        eventually(lambda: peer.lie is None and peer.windows == [0])
        one.put(report(1))
        eventually(lambda: peer.windows == [0, 1])
        one.close(end(2))


def test_an_end_whose_answer_is_lost_is_not_announced_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    def lose(handler: Handler, body: bytes) -> None:
        handler.truth(body)
        handler.server.lie = None
        handler.close_connection = True

    with serving(SPEC, TOKEN) as peer:
        one = desk(peer)
        assert one.wait_ready(150)
        one.put(report(0))
        eventually(lambda: peer.windows == [0])
        peer.lie = lose
        one.close(end(1))
        assert [found.windows for found in peer.ends] == [1]
    assert "lacks" not in caplog.text


def test_a_window_that_is_refused_for_good_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gravac_agent.reporting.remote.MAX_REFUSALS", 3)

    def refuse_first(handler: Handler, body: bytes) -> None:
        if handler.path.endswith("/windows") and WindowReport.model_validate_json(body).window == 1:
            return handler.problem(413, "the body is too large")
        return handler.answer(handler.truth(body))

    with serving(SPEC, TOKEN) as peer:
        peer.lie = refuse_first
        one = desk(peer)
        for window in range(4):
            one.put(report(window))
        eventually(lambda: peer.windows == [0, 2, 3])
        assert "window 1 is dropped, as the controller keeps refusing it" in caplog.text
        assert "the body is too large" in caplog.text
        one.close(end(4))
    assert "lacks 1 windows that were dropped" in caplog.text


def test_an_event_that_is_refused_for_good_is_announced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gravac_agent.reporting.remote.MAX_REFUSALS", 3)

    def refuse_events(handler: Handler, body: bytes) -> None:
        if handler.path.endswith("/events"):
            return handler.problem(422, "no such kind")
        return handler.answer(handler.truth(body))

    with serving(SPEC, TOKEN) as peer:
        peer.lie = refuse_events
        one = desk(peer)
        one.note(Event(kind="note", window=None, message="refused"))
        one.put(report(0))
        eventually(lambda: peer.windows == [0])
        one.close(end(1))
    assert "an event is dropped, as the controller keeps refusing it" in caplog.text
    assert "lacks 1 events" in caplog.text


def test_what_cannot_be_delivered_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    with serving(SPEC, TOKEN) as peer:
        one = desk(peer, seconds=0.2)
        assert one.wait_ready(150)
        peer.lie = LIES["503"]
        for window in range(2):
            one.put(report(window))
        began = time.monotonic()
        one.close(end(2))
        assert time.monotonic() - began < 5.0
    assert "lacks 2 windows that were never acknowledged" in caplog.text


def test_an_older_epoch_is_not_obeyed_and_the_controller_gets_the_newer_state() -> None:
    with serving(SPEC, TOKEN) as peer:
        peer.fold._state = StaticPolicy(cf=10).start(epoch=5).state
        one = desk(peer)
        assert one.wait_ready(150)
        one.put(report(0))
        eventually(lambda: peer.windows == [0])
        assert one.directive.epoch == 5
        peer.fold._state = StaticPolicy(cf=10).start(epoch=3).state
        one.put(report(1))
        eventually(lambda: peer.windows == [0, 1])
        eventually(lambda: peer.fold.decision.epoch == 5)  # it was brought back at the next registration
        one.put(report(2))
        eventually(lambda: peer.windows == [0, 1, 2])
        assert one.directive.epoch == 5
        one.close(end(3))


def test_a_checkpoint_whose_job_counted_further_than_its_trainer() -> None:
    """A trainer started twice under one name: its checkpoint has window 3, and the job's decision on window 12. Under a
    new name windows go on from 3, and the epoch still grows."""
    policy = StaticPolicy(cf=10, warmup_windows=2)
    spec = job_spec(policy.spec())
    state = policy.start(epoch=4).state
    state = state.model_copy(update={"decision": state.decision.model_copy(update={"window": 12})})
    with serving(spec, TOKEN) as peer:
        one = desk(peer)
        assert one.wait_ready(60)
        one.resume(state.model_dump_json(), window=3)
        for window in range(3, 7):
            one.put(report(window, state.decision))
        eventually(lambda: peer.windows == [3, 4, 5, 6])
        eventually(lambda: one.directive.epoch == 5)
        assert one.directive.cf_candidate == 10.0
        one.close(end(7))


def test_a_checkpoint_of_a_job_that_went_on_since() -> None:
    """The job decided on windows 3 to 9 after the checkpoint was saved: its epoch counts."""
    with serving(SPEC, TOKEN) as peer:
        peer.fold._state, peer.fold.next_window = StaticPolicy(cf=10).start(epoch=6).state, 10
        one = desk(peer)
        assert one.wait_ready(60)
        one.resume(StaticPolicy(cf=10).start(epoch=2).state.model_dump_json(), window=3)
        one.put(report(3))
        eventually(lambda: peer.windows == [10])
        eventually(lambda: one.directive.epoch == 6)
        one.close(end(4))


def test_a_decision_whose_answer_was_lost_comes_with_the_next_registration() -> None:
    """The window that it followed is in the journal: the epoch grows although no window is answered."""
    policy = StaticPolicy(cf=10, warmup_windows=1)
    with serving(job_spec(policy.spec()), TOKEN) as peer:

        def lose(handler: Handler, body: bytes) -> None:
            handler.truth(body)
            handler.server.lie = None
            handler.close_connection = True

        one = desk(peer)
        assert one.wait_ready(60)
        peer.lie = lose
        one.put(report(0, policy.start().decision))
        eventually(lambda: one.directive.epoch == 1)
        assert peer.windows == [0]
        one.close(end(1))


def test_epochs_of_another_run_grow_no_faster_than_windows_are_handed_in() -> None:
    """Another run of this name reported windows 1 to 3. A liar could say the same, and any number."""
    with serving(SPEC, TOKEN) as peer:
        one = desk(peer)
        one.put(report(0))
        eventually(lambda: peer.windows == [0])
        peer.lie = LIES["503"]
        one.put(report(1))
        eventually(lambda: len(peer.lied) >= 2)
        peer.fold._state, peer.fold.next_window = StaticPolicy(cf=10).start(epoch=2).state, 4
        peer.lie, asked = None, len(peer.asked)
        eventually(lambda: len(peer.asked) >= asked + 4)
        assert (one.directive.epoch, peer.windows) == (0, [0])
        one.put(report(2))
        eventually(lambda: peer.windows == [0, 4, 5])
        assert one.directive.epoch == 2
        one.close(end(3))


@pytest.mark.parametrize(
    ("epoch", "decided", "valid"),
    [
        (7, 0, True),
        (8, 0, False),
        (8, 1, True),
        (9, 1, False),
        (6, 5, False),
        (2**48, None, True),
        (2**48 + 1, None, False),
    ],
)
def test_an_epoch_grows_by_at_most_one_for_each_window_decided(
    epoch: int, decided: int | None, valid: bool
) -> None:
    policy = StaticPolicy(cf=10)
    checker = Checker(policy, 10.0, None if decided is None else policy.start(epoch=7).decision)
    state = policy.start(epoch=epoch).state
    with contextlib.nullcontext() if valid else pytest.raises(NoAnswer, match=f"epoch {epoch}"):
        checker.accept(state.decision, state.model_dump_json(), decided)


def test_a_server_without_keep_alive_is_served_where_no_token_is_at_stake() -> None:
    with serving(SPEC, None) as peer:
        peer.lie = lambda handler, body: handler.answer(handler.truth(body), connection="close")
        one = desk(peer, token=None)
        for window in range(3):
            one.put(report(window))
        eventually(lambda: peer.windows == [0, 1, 2])
        one.close(end(3))


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("503", Refused, "answered 503: no"),
        ("422", Refused, "answered 422: \\?\\[31mred"),
        ("302", NoAnswer, "answered 302 with application/json, which no gravac controller does"),
        ("200 with HTML", NoAnswer, "answered 200 with text/html"),
        ("half a body", NoAnswer, "broke off"),
        ("silent", NoAnswer, "timed out|closed connection"),
        ("drips", NoAnswer, "."),
        ("endless head", NoAnswer, "."),
        ("endless body", NoAnswer, "."),
    ],
)
def test_connection_errors_name_the_reason(kind: str, error: type[Exception], words: str) -> None:
    with serving(SPEC, None) as peer:
        peer.lie = LIES[kind]
        began = time.monotonic()
        with (
            pytest.raises(error, match=words) as caught,
            Connection(peer.url, seconds=0.5, token=None) as connection,
        ):
            connection.post("/v1/jobs", SPEC.model_dump_json())
        assert time.monotonic() - began < 10.0
        assert str(caught.value).isprintable()
        assert peer.url not in str(caught.value)  # the desk's log line begins with it


def test_retry_after_is_heeded_up_to_a_minute() -> None:
    with serving(SPEC, None) as peer:
        for header, seconds in (("7", 7.0), ("1e9", 60.0), ("-3", 0.0), ("soon", 0.0)):
            text = '{"status":429,"detail":"no"}'
            peer.lie = lambda handler, body, header=header, text=text: handler.answer(
                text, 429, "application/problem+json", retry_after=header
            )
            with (
                pytest.raises(Refused) as caught,
                Connection(peer.url, seconds=5, token=None) as connection,
            ):
                connection.post("/v1/jobs", "{}")
            assert caught.value.retry_after == seconds


def test_a_broken_connection_is_never_opened_again() -> None:
    """Another program may answer by then, which has proved nothing."""
    with serving(SPEC, TOKEN) as peer, Connection(peer.url, seconds=5, token=TOKEN) as connection:
        connection.post("/v1/jobs", SPEC.model_dump_json())
        peer.lie = lambda handler, body: handler.answer("{}", connection="close")
        connection.post("/v1/jobs", "{}")
        assert connection.closed
        peer.lie, asked = None, len(peer.asked)
        with pytest.raises(NoAnswer):
            connection.post("/v1/jobs", "{}")
        assert len(peer.asked) == asked


def test_the_log_says_what_is_wrong_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with serving(SPEC, "another-token-of-somebody-0123456") as peer:
        one = desk(peer)
        eventually(lambda: len(peer.asked) >= 3)
        one.close(end(0))
    lines = [record.getMessage() for record in caplog.records if "no valid answer" in record.getMessage()]
    assert len(lines) == 1
    assert "does not prove that it knows the token" in lines[0]
    assert peer.url in lines[0]
