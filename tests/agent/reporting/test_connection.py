"""One HTTP connection to a controller: deadlines, reasons of failures, and when it may not be used again."""

import time

import pytest

from gravac_agent.reporting.connection import ControllerConnection, ErrorAnswer, NoAnswer
from tests.support.peer import INVALID_ANSWERS, SPEC, TOKEN, serving


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("503", ErrorAnswer, "answered 503: the disk is full"),
        ("escapes in a problem", ErrorAnswer, "answered 409: \\?\\[31mred"),
        ("302 to elsewhere", NoAnswer, "answered 302 with text/html, which no gravac controller sends"),
        ("200 HTML", NoAnswer, "answered 200 with text/html"),
        ("truncated body", NoAnswer, "is incomplete"),
        ("silent", NoAnswer, "did not answer within"),
        ("dripped bytes", NoAnswer, "."),
        ("endless headers", NoAnswer, "."),
        ("endless body", NoAnswer, "."),
    ],
)
def test_connection_errors_name_the_reason(kind: str, error: type[Exception], words: str) -> None:
    with serving(SPEC, None) as peer:
        peer.invalid = INVALID_ANSWERS[kind]
        began = time.monotonic()
        with (
            pytest.raises(error, match=words) as caught,
            ControllerConnection(peer.url, seconds=0.5, token=None) as connection,
        ):
            connection.post("/v1/jobs", SPEC.model_dump_json())
        assert time.monotonic() - began < 10.0
        assert str(caught.value).isprintable()
        assert peer.url not in str(caught.value)  # the reporter's log line begins with it


def test_retry_after_is_followed_up_to_a_minute() -> None:
    with serving(SPEC, None) as peer:
        for header, seconds in (("7", 7.0), ("1e9", 60.0), ("-3", 0.0), ("soon", 0.0)):
            text = '{"status":429,"detail":"no"}'
            peer.invalid = lambda handler, body, header=header, text=text: handler.answer(
                text, 429, "application/problem+json", retry_after=header
            )
            with (
                pytest.raises(ErrorAnswer) as caught,
                ControllerConnection(peer.url, seconds=5, token=None) as connection,
            ):
                connection.post("/v1/jobs", "{}")
            assert caught.value.retry_after == seconds


def test_a_broken_connection_is_never_opened_again() -> None:
    """Another program, which has proved nothing, may listen there by then."""
    with serving(SPEC, TOKEN) as peer, ControllerConnection(peer.url, seconds=5, token=TOKEN) as connection:
        connection.post("/v1/jobs", SPEC.model_dump_json())
        peer.invalid = lambda handler, body: handler.answer("{}", connection="close")
        connection.post("/v1/jobs", "{}")
        assert connection.closed
        peer.invalid, before = None, len(peer.requests)
        with pytest.raises(NoAnswer):
            connection.post("/v1/jobs", "{}")
        assert len(peer.requests) == before
