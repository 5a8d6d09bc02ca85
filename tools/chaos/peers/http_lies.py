"""Lies in HTTP: pages of other programs, errors that no controller sends, and bytes that are no HTTP."""

import gzip
import itertools
import json
from collections.abc import Iterator

from tools.chaos.peers.lies import Lie, LieContext, Responder
from tools.chaos.peers.messages import Message, answer

ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;owned\x07 \x9b2J"


def page(status: str, body: bytes, *headers: str, kind: str = "application/json") -> Responder:
    """Respond to everything alike."""

    def respond(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
        yield answer(status, body, *headers, kind=kind)

    return respond


def problem(status: str, detail: str, *headers: str) -> Responder:
    """Respond with an error in a controller's format."""
    number, _, title = status.partition(" ")
    body = {"type": "about:blank", "title": title, "status": int(number), "detail": detail, "errors": []}
    return page(status, json.dumps(body).encode(), *headers, kind="application/problem+json")


def honest(request: Message, reply: Message | None, context: LieContext) -> bytes:
    """Return the honest body, or a made-up one."""
    return json.dumps(context.invented(request)).encode() if reply is None else reply.body


def redirected(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
    yield answer("302 Found", b"", f"Location: {context.elsewhere}{request.path}", kind="text/html")


def moved(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
    yield answer(
        "307 Temporary Redirect", b"", f"Location: {context.elsewhere}{request.path}", kind="text/html"
    )


def truncated(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
    whole = answer("200 OK", honest(request, reply, context) + b" " * 64)
    yield whole[: len(whole) - 60 - context.chance.randrange(20)]


def short_length(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
    body = honest(request, reply, context) or b"{}"
    yield answer("200 OK", body).replace(b"Content-Length: %d" % len(body), b"Content-Length: 1")


def odd_length(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: banana\r\n\r\n"
    yield head + b'{"decision": {}}'


def endless_body(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    while True:
        yield b" " * 16384


def endless_headers(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    for number in itertools.count():
        yield b"X-%d: %s\r\n" % (number, b"x" * 200)


def endless_continue(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
    while True:
        yield b"HTTP/1.1 100 Continue\r\n\r\n"


def dripped(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
    whole = answer("200 OK", honest(request, reply, context) + b" " * 1000)
    for number in range(len(whole)):
        yield whole[number : number + 1]


def garbage(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
    yield context.chance.randbytes(context.chance.randrange(1, 3000))


def odd_status(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
    yield b"HTTP/9.9 two hundred\r\n\r\n{}"


def bad_chunks(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n{}\r\nzz\r\n"


def zipped(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
    yield answer("200 OK", gzip.compress(honest(request, reply, context)), "Content-Encoding: gzip")


def closed(request: Message, reply: Message | None, context: LieContext) -> Iterator[bytes]:
    return iter(())


LOGIN = b"<!doctype html><title>Sign in</title><form action=/login><input name=user></form>"

LIES = (
    Lie("200 HTML", page("200 OK", LOGIN, kind="text/html"), keeps_open=True),
    Lie("200 empty", page("200 OK", b""), keeps_open=True),
    Lie("200 JSON of another shape", page("200 OK", b'{"status": "ok"}'), keeps_open=True),
    Lie("200 JSON list", page("200 OK", b"[]"), keeps_open=True),
    Lie("204", page("204 No Content", b""), keeps_open=True),
    Lie("302 to elsewhere", redirected, keeps_open=True),
    Lie("307 to elsewhere", moved, keeps_open=True),
    Lie("401", problem("401 Unauthorized", "a token is needed", "WWW-Authenticate: Bearer"), keeps_open=True),
    Lie("403", problem("403 Forbidden", "not for you"), keeps_open=True),
    Lie("404", problem("404 Not Found", "no such job; register it with POST /v1/jobs"), keeps_open=True),
    Lie("409", problem("409 Conflict", "window 3 was reported before with other content"), keeps_open=True),
    Lie("413", problem("413 Content Too Large", "at most 10 bytes"), keeps_open=True),
    Lie("422", problem("422 Unprocessable Content", "window: should be another"), keeps_open=True),
    Lie("429 for ever", problem("429 Too Many Requests", "later", "Retry-After: 86400"), keeps_open=True),
    Lie("429", problem("429 Too Many Requests", "later"), keeps_open=True),
    Lie("500", page("500 Internal Server Error", b"<h1>oops</h1>", kind="text/html"), keeps_open=True),
    Lie("503", problem("503 Service Unavailable", "the disk is full", "Retry-After: 1"), keeps_open=True),
    Lie("truncated body", truncated),
    Lie("Content-Length too small", short_length),
    Lie("Content-Length not a number", odd_length),
    Lie("endless body", endless_body, slow=0.002),
    Lie("endless headers", endless_headers, slow=0.002),
    Lie("endless 100 Continue", endless_continue, slow=0.002),
    Lie("dripped bytes", dripped, slow=0.05),
    Lie("garbage bytes", garbage),
    Lie("odd status line", odd_status),
    Lie("bad chunks", bad_chunks),
    Lie("gzip unasked", zipped, keeps_open=True),
    Lie("closes at once", closed),
    Lie("escapes in a problem", problem("409 Conflict", ESCAPES), keeps_open=True),
    Lie("escapes in an error", problem("500 Internal Server Error", ESCAPES), keeps_open=True),
)
