"""Reporting to a controller whose answers are invalid, late or lost: no window is lost, no bad decision followed."""

import contextlib
import itertools
import logging
import threading
import time

import pytest

from gravac.policies import StaticPolicy
from gravac.protocol import Event, WindowReport
from gravac_agent import Agent
from gravac_agent.reporting import controller_link
from tests.support.peer import (
    INVALID_ANSWERS,
    SPEC,
    TOKEN,
    Handler,
    connected,
    eventually,
    job_end,
    serving,
    window_report,
)
from tests.support.small_model import pair, step
from tools.harness.cluster import job_spec

pytestmark = pytest.mark.usefixtures("short_pauses")
MOST_REQUESTS_A_SECOND = 5


def test_no_invalid_answer_is_followed(
    real_pauses: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kinds at once, each with a reporter and a server: dense after three windows, few requests, clear log."""
    monkeypatch.setattr(controller_link, "REQUEST_SECONDS", 1.0)
    with contextlib.ExitStack() as stack:
        peers = {kind: stack.enter_context(serving(SPEC, TOKEN)) for kind in INVALID_ANSWERS}
        reporters = {kind: connected(peer) for kind, peer in peers.items()}
        for kind, reporter in reporters.items():
            assert reporter.wait_ready(60), kind
            reporter.report_window(window_report(0))
        for kind, peer in peers.items():
            eventually(lambda peer=peer: peer.windows == [0])
            assert reporters[kind].directive.cf_candidate == 10.0
            peer.invalid = INVALID_ANSWERS[kind]
        for reporter in reporters.values():
            reporter.report_window(window_report(1))
        time.sleep(1.5)
        for kind, reporter in reporters.items():
            for window in range(2, 5):
                reporter.report_window(window_report(window))
            assert reporter.directive.phase == "fallback", kind
            assert reporter.directive.cf_candidate == reporter.directive.cf_minimum == 1.0
        eventually(lambda: all(len(peer.invalid_at) >= 5 for kind, peer in peers.items() if kind not in SLOW))
        for kind, reporter in reporters.items():
            assert reporter.directive.phase == "fallback", kind
            assert reporter.directive.cf_candidate == 1.0, kind
            assert peers[kind].windows == [0], kind
            assert peers[kind].busiest_second() <= MOST_REQUESTS_A_SECOND, kind
        lines = [record.getMessage() for record in caplog.records if "no valid answer" in record.getMessage()]
        for kind, peer in peers.items():
            logged = [line for line in lines if peer.url in line]
            assert 1 <= len(logged) <= 4, (kind, logged)
            peer.invalid = None
        assert all(line.isprintable() for line in lines)
        for status in (200, 302, 401, 403, 409, 422, 503):
            assert any(f"answered {status}" in line for line in lines), status
        for kind, peer in peers.items():
            eventually(lambda peer=peer: peer.windows == [0, 1, 2, 3, 4])
            reporter = reporters[kind]
            eventually(lambda reporter=reporter: reporter.directive.phase == "hold")
            assert reporter.directive.cf_candidate == 10.0, kind
            reporter.close(job_end(5))
            assert [(found.windows, found.message) for found in peer.ends] == [(5, "finished")], kind
            assert [event.kind for event in peer.events] == ["fallback", "recovered"], kind


@pytest.mark.parametrize("status", [401, 403, 404, 409, 413, 422])
def test_what_is_refused_for_good_is_not_tried_again_at_the_end(
    world_of_one: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """And nothing promises a journal of this run."""
    monkeypatch.setattr(controller_link, "REQUEST_SECONDS", 10.0)
    with serving(SPEC, TOKEN) as peer:
        peer.invalid = lambda handler, _: handler.problem(status, "not here", "refused")
        module, optimizer = pair()
        with caplog.at_level(logging.INFO, "gravac.agent"):
            with Agent(module, optimizer, controller=peer.url, token=TOKEN) as agent:
                assert not agent.wait_ready(0)
                eventually(lambda: len(peer.invalid_at) >= 1)
                step(module, optimizer)
                began = time.monotonic()
            assert time.monotonic() - began < 5.0
    assert "after 1 steps" in caplog.text
    assert "without a journal: no controller accepted this run" in caplog.text
    assert "journal at" not in caplog.text


@pytest.mark.parametrize("status", [408, 503])
def test_what_may_be_accepted_later_is_tried_again_at_the_end(status: int) -> None:
    with serving(SPEC, TOKEN) as peer:
        peer.invalid = lambda handler, _: handler.problem(status)
        reporter = connected(peer)
        reporter.report_window(window_report(0))
        eventually(lambda: len(peer.invalid_at) >= 1)
        threading.Timer(1.0, setattr, (peer, "invalid", None)).start()
        reporter.close(job_end(1))
        assert [found.windows for found in peer.ends] == [1]


def test_at_the_end_nothing_says_that_the_training_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_link, "REQUEST_SECONDS", 0.5)
    with serving(SPEC, TOKEN) as peer:
        reporter = connected(peer)
        assert reporter.wait_ready(60)
        peer.invalid = lambda handler, _: handler.problem(503)
        reporter.close(job_end(1))
    assert "it answered 503" in caplog.text
    assert "the training has ended" in caplog.text
    assert "goes on" not in caplog.text


SLOW = {"dripped bytes", "silent", "endless headers", "endless body", "endless 100 Continue"}
"""Each of these takes the whole deadline of a request."""


def test_a_server_without_a_valid_answer_gets_few_requests(
    real_pauses: None, caplog: pytest.LogCaptureFixture
) -> None:
    """gravac 0.1 sent 1,145 requests in 1.5 s where a login page answered the registration."""
    with serving(SPEC, TOKEN) as peer:
        peer.invalid = INVALID_ANSWERS["200 HTML"]
        reporter = connected(peer)
        reporter.report_event(Event(kind="note", window=None, message="queued"))
        for window in range(4):
            if window == 3:
                assert reporter.directive.phase != "fallback"
                time.sleep(2.0)
            reporter.report_window(window_report(window))
        eventually(lambda: len(peer.invalid_at) >= 6)
        assert peer.busiest_second() <= MOST_REQUESTS_A_SECOND
        peer.invalid = None
        eventually(lambda: peer.windows == [0, 1, 2, 3])
        reporter.close(job_end(4))
        assert [event.kind for event in peer.events] == ["note", "fallback", "recovered"]
    logged = [record.getMessage() for record in caplog.records]
    assert f"job {SPEC.job}: No answer from the controller for 3 windows: all ranks go dense." in logged
    assert f"job {SPEC.job}: The controller is back: its decision holds again." in logged


def test_windows_shorter_than_an_answer_are_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of 2 ms a step ends three of its first windows, of 1 and 2 steps, before any controller could answer."""
    with serving(SPEC, TOKEN) as peer:

        def slowly(handler: Handler, body: bytes) -> None:
            time.sleep(0.1)
            handler.answer(handler.valid(body))

        monkeypatch.setattr(controller_link, "REQUEST_SECONDS", 5.0)
        peer.invalid = slowly
        reporter = connected(peer)
        for window in range(20):
            reporter.report_window(window_report(window))
            assert reporter.directive.phase != "fallback", window
        eventually(lambda: peer.windows == list(range(20)))
        reporter.close(job_end(20))
        assert not peer.events


def test_a_server_that_does_not_prove_the_token_gets_nothing() -> None:
    with serving(SPEC, TOKEN) as peer:
        peer.proves = False
        reporter = connected(peer)
        for window in range(4):
            reporter.report_window(window_report(window))
        eventually(lambda: len(peer.requests) >= 3)
        assert all(line.startswith("GET /v1/proof?challenge=") for _, line in peer.requests)
        assert TOKEN.encode() not in peer.received
        assert b"uthorization" not in peer.received
        assert not reporter.wait_ready(0)
        peer.proves = True
        eventually(lambda: peer.windows == [0, 1, 2, 3])
        reporter.close(job_end(4))


@pytest.mark.parametrize("sent", [0, 1, 60, 200])
def test_an_incomplete_answer_is_no_answer(sent: int) -> None:
    """gravac 0.1 read an empty body where the controller died after the head, and dropped a window."""

    def cut(handler: Handler, body: bytes) -> None:
        text = handler.valid(body).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
        handler.wfile.write(head.encode() + text[:sent])
        handler.close_connection = True

    with serving(SPEC, TOKEN) as peer:
        peer.invalid = cut
        reporter = connected(peer)
        for window in range(2):
            reporter.report_window(window_report(window))
        eventually(lambda: len(peer.invalid_at) >= 3)
        peer.invalid = None
        reporter.report_window(window_report(2))
        eventually(lambda: peer.windows == [0, 1, 2])  # none lost, none counted twice
        reporter.close(job_end(3))
        assert [found.windows for found in peer.ends] == [3]


def test_a_window_whose_answer_is_lost_is_sent_again_and_counts_once() -> None:
    calls = itertools.count()

    def lose(handler: Handler, body: bytes) -> None:
        handler.valid(body)
        if next(calls) > 2:
            handler.server.invalid = None
        handler.close_connection = True

    with serving(SPEC, TOKEN) as peer:
        reporter = connected(peer)
        assert reporter.wait_ready(150)
        peer.invalid = lose
        reporter.report_window(window_report(0))
        eventually(lambda: peer.invalid is None and peer.windows == [0])
        reporter.report_window(window_report(1))
        eventually(lambda: peer.windows == [0, 1])
        reporter.close(job_end(2))


def test_an_end_whose_answer_is_lost_is_not_logged_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    def lose(handler: Handler, body: bytes) -> None:
        handler.valid(body)
        handler.server.invalid = None
        handler.close_connection = True

    with serving(SPEC, TOKEN) as peer:
        reporter = connected(peer)
        assert reporter.wait_ready(150)
        reporter.report_window(window_report(0))
        eventually(lambda: peer.windows == [0])
        peer.invalid = lose
        reporter.close(job_end(1))
        assert [found.windows for found in peer.ends] == [1]
    assert "lacks" not in caplog.text


def test_a_window_that_is_always_refused_does_not_block_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gravac_agent.reporting.http_reporter.MAX_REFUSALS", 3)

    def refuse_first(handler: Handler, body: bytes) -> None:
        if handler.path.endswith("/windows") and WindowReport.model_validate_json(body).window == 1:
            return handler.problem(413, "the body is too large")
        return handler.answer(handler.valid(body))

    with serving(SPEC, TOKEN) as peer:
        peer.invalid = refuse_first
        reporter = connected(peer)
        for window in range(4):
            reporter.report_window(window_report(window))
        eventually(lambda: peer.windows == [0, 2, 3])
        assert f"job {SPEC.job}: window 1 is dropped because the controller keeps refusing it" in caplog.text
        assert "the body is too large" in caplog.text
        reporter.close(job_end(4))
    assert "lacks 1 windows that were dropped" in caplog.text


def test_an_event_that_is_always_refused_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gravac_agent.reporting.http_reporter.MAX_REFUSALS", 3)

    def refuse_events(handler: Handler, body: bytes) -> None:
        if handler.path.endswith("/events"):
            return handler.problem(422, "no such kind")
        return handler.answer(handler.valid(body))

    with serving(SPEC, TOKEN) as peer:
        peer.invalid = refuse_events
        reporter = connected(peer)
        reporter.report_event(Event(kind="note", window=None, message="refused"))
        reporter.report_window(window_report(0))
        eventually(lambda: peer.windows == [0])
        reporter.close(job_end(1))
    assert f"job {SPEC.job}: an event is dropped because the controller keeps refusing it" in caplog.text
    assert "lacks 1 events" in caplog.text


def test_undelivered_records_are_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_link, "REQUEST_SECONDS", 0.2)
    with serving(SPEC, TOKEN) as peer:
        reporter = connected(peer)
        assert reporter.wait_ready(150)
        peer.invalid = INVALID_ANSWERS["503"]
        for window in range(2):
            reporter.report_window(window_report(window))
        began = time.monotonic()
        reporter.close(job_end(2))
        assert time.monotonic() - began < 5.0
    assert "lacks 2 windows that were never acknowledged" in caplog.text


def test_an_older_epoch_is_not_followed_and_the_controller_gets_the_newer_state() -> None:
    with serving(SPEC, TOKEN) as peer:
        peer.fold._state = StaticPolicy(cf=10).start(epoch=5).state
        reporter = connected(peer)
        assert reporter.wait_ready(150)
        reporter.report_window(window_report(0))
        eventually(lambda: peer.windows == [0])
        assert reporter.directive.epoch == 5
        peer.fold._state = StaticPolicy(cf=10).start(epoch=3).state
        reporter.report_window(window_report(1))
        eventually(lambda: peer.windows == [0, 1])
        eventually(lambda: peer.fold.decision.epoch == 5)  # it was registered again
        reporter.report_window(window_report(2))
        eventually(lambda: peer.windows == [0, 1, 2])
        assert reporter.directive.epoch == 5
        reporter.close(job_end(3))


def test_a_checkpoint_whose_job_has_more_windows_than_its_trainer() -> None:
    """A trainer ran twice under one name: its checkpoint has window 3, the job's decision has window 12. Under a new
    name, windows continue from 3, and the epoch still grows."""
    policy = StaticPolicy(cf=10, warmup_windows=2)
    spec = job_spec(policy.spec())
    state = policy.start(epoch=4).state
    state = state.model_copy(update={"decision": state.decision.model_copy(update={"window": 12})})
    with serving(spec, TOKEN) as peer:
        reporter = connected(peer)
        assert reporter.wait_ready(60)
        reporter.resume(state.model_dump_json(), window=3)
        for window in range(3, 7):
            reporter.report_window(window_report(window, state.decision))
        eventually(lambda: peer.windows == [3, 4, 5, 6])
        eventually(lambda: reporter.directive.epoch == 5)
        assert reporter.directive.cf_candidate == 10.0
        reporter.close(job_end(7))


def test_a_checkpoint_of_a_job_that_continued_since() -> None:
    """The job decided on windows 3 to 9 after the checkpoint was saved: its epoch holds."""
    with serving(SPEC, TOKEN) as peer:
        peer.fold._state, peer.fold.next_window = StaticPolicy(cf=10).start(epoch=6).state, 10
        reporter = connected(peer)
        assert reporter.wait_ready(60)
        reporter.resume(StaticPolicy(cf=10).start(epoch=2).state.model_dump_json(), window=3)
        reporter.report_window(window_report(3))
        eventually(lambda: peer.windows == [10])
        eventually(lambda: reporter.directive.epoch == 6)
        reporter.close(job_end(4))


def test_a_checkpoint_from_before_the_first_answer() -> None:
    """Its policy has no state yet. Windows are numbered on from the job's, without a gap."""
    with serving(SPEC, TOKEN) as peer:
        peer.fold.next_window = 4
        reporter = connected(peer)
        assert reporter.wait_ready(60)
        reporter.resume(None, window=3)
        for window in (3, 4):
            reporter.report_window(window_report(window))
        eventually(lambda: peer.windows == [4, 5])
        reporter.close(job_end(5))


def test_a_decision_whose_answer_was_lost_comes_with_the_next_registration() -> None:
    """The decision's window is in the journal: the epoch grows although no window is answered."""
    policy = StaticPolicy(cf=10, warmup_windows=1)
    with serving(job_spec(policy.spec()), TOKEN) as peer:

        def lose(handler: Handler, body: bytes) -> None:
            handler.valid(body)
            handler.server.invalid = None
            handler.close_connection = True

        reporter = connected(peer)
        assert reporter.wait_ready(60)
        peer.invalid = lose
        reporter.report_window(window_report(0, policy.start().decision))
        eventually(lambda: reporter.directive.epoch == 1)
        assert peer.windows == [0]
        reporter.close(job_end(1))


def test_epochs_of_another_run_grow_no_faster_than_windows_are_reported() -> None:
    """Another run of this name reported windows 1 to 3. A false controller could claim the same, with any number."""
    with serving(SPEC, TOKEN) as peer:
        reporter = connected(peer)
        reporter.report_window(window_report(0))
        eventually(lambda: peer.windows == [0])
        peer.invalid = INVALID_ANSWERS["503"]
        reporter.report_window(window_report(1))
        eventually(lambda: len(peer.invalid_at) >= 2)
        peer.fold._state, peer.fold.next_window = StaticPolicy(cf=10).start(epoch=2).state, 4
        peer.invalid, before = None, len(peer.requests)
        eventually(lambda: len(peer.requests) >= before + 4)
        assert (reporter.directive.epoch, peer.windows) == (0, [0])
        reporter.report_window(window_report(2))
        eventually(lambda: peer.windows == [0, 4, 5])
        assert reporter.directive.epoch == 2
        reporter.close(job_end(3))


def test_a_server_without_keep_alive_works_without_a_token() -> None:
    with serving(SPEC, None) as peer:
        peer.invalid = lambda handler, body: handler.answer(handler.valid(body), connection="close")
        reporter = connected(peer, token=None)
        for window in range(3):
            reporter.report_window(window_report(window))
        eventually(lambda: peer.windows == [0, 1, 2])
        reporter.close(job_end(3))


def test_the_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with serving(SPEC, "another-token-of-somebody-0123456") as peer:
        reporter = connected(peer)
        eventually(lambda: len(peer.requests) >= 3)
        reporter.close(job_end(0))
    lines = [record.getMessage() for record in caplog.records if "no valid answer" in record.getMessage()]
    assert len(lines) == 1
    assert "does not prove that it knows the token" in lines[0]
    assert peer.url in lines[0]
