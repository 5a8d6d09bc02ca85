"""Invalid answers to an agent, by kind. Each is called with the request's handler and its body."""

import contextlib
import json
import time
from typing import Any

from tests.support.peer import Handler, InvalidAnswer


def _changed(handler: Handler, body: bytes, **changes: Any) -> None:
    """A controller's answer with fields of its decision changed; the record is not accepted."""
    fold = handler.server.fold
    answer = json.loads(
        (fold.job_answer() if handler.path == "/v1/jobs" else fold.answer()).model_dump_json()
    )
    state = json.loads(answer["policy_state"])
    for name, value in changes.items():
        if name in answer["decision"]:
            answer["decision"][name] = state["decision"][name] = value
        else:
            answer[name] = value
    if "policy_state" not in changes:
        answer["policy_state"] = json.dumps(state, separators=(",", ":"))
    handler.answer(json.dumps(answer))


def _raw(handler: Handler, text: bytes) -> None:
    handler.wfile.write(text)
    handler.close_connection = True


def _drip(handler: Handler, body: bytes) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{")
    with contextlib.suppress(OSError):
        for _ in range(200):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.1)
    handler.close_connection = True


def _endless(handler: Handler, piece: bytes) -> None:
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(piece)


def _silent(handler: Handler, body: bytes) -> None:
    time.sleep(20)
    handler.close_connection = True


OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
INVALID_ANSWERS: dict[str, InvalidAnswer] = {
    "200 with HTML": lambda handler, body: handler.answer("<html>log in</html>", kind="text/html"),
    "200 with JSON declared as HTML": lambda handler, body: handler.answer("{}", kind="text/html"),
    "200 and empty": lambda handler, body: handler.answer(""),
    "200 with another object": lambda handler, body: handler.answer('{"ok":true}'),
    "200 with a list": lambda handler, body: handler.answer("[]"),
    "200 with NaN": lambda handler, body: _changed(handler, body, epsilon=float("nan")),
    "200 nested deeply": lambda handler, body: handler.answer('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "204": lambda handler, body: handler.answer("", 204),
    "302": lambda handler, body: handler.answer("", 302, location="http://127.0.0.1:9/"),
    "401": lambda handler, body: handler.problem(401),
    "403": lambda handler, body: handler.problem(403),
    "403 of a proxy": lambda handler, body: handler.answer("denied", 403, "text/plain"),
    "404": lambda handler, body: handler.problem(404),
    "409": lambda handler, body: handler.problem(409),
    "413": lambda handler, body: handler.problem(413),
    "422": lambda handler, body: handler.problem(422, "\x1b[31mred\x1b[0m\r\nforged line"),
    "429": lambda handler, body: handler.problem(429),
    "500": lambda handler, body: handler.problem(500),
    "503": lambda handler, body: handler.problem(503),
    "garbage": lambda handler, body: _raw(handler, b"\x00\xff" * 40),
    "closes at once": lambda handler, body: _raw(handler, b""),
    "head without body": lambda handler, body: _raw(handler, OK + b"content-length: 400\r\n\r\n"),
    "half a body": lambda handler, body: _raw(handler, OK + b'content-length: 400\r\n\r\n{"decision":'),
    "drips": _drip,
    "silent": _silent,
    "endless head": lambda handler, body: _endless(handler, b"x: y\r\n"),
    "endless body": lambda handler, body: (
        handler.wfile.write(OK + b"\r\n"),
        _endless(handler, b" " * 4096),
    )[1],
    "phase fallback": lambda handler, body: _changed(handler, body, phase="fallback"),
    "huge epoch": lambda handler, body: _changed(handler, body, epoch=2**53),
    "window far ahead": lambda handler, body: _changed(handler, body, window=10**6, epoch=10**6),
    "epoch without a window": lambda handler, body: _changed(handler, body, epoch=9),
    "epoch and next window far ahead": lambda handler, body: _changed(
        handler, body, epoch=10**6, next_window=10**6
    ),
    "huge next window": lambda handler, body: _changed(handler, body, next_window=2**53),
    "codec that no rank has built": lambda handler, body: _changed(handler, body, codec="int4"),
    "huge cf": lambda handler, body: _changed(handler, body, cf_candidate=1e9, cf_minimum=1e9),
    "huge pinned cf": lambda handler, body: _changed(
        handler, body, cf_candidate=1e9, cf_minimum=1e9, rule="pinned"
    ),
    "state of nothing": lambda handler, body: _changed(handler, body, policy_state="{}"),
    "state of another decision": lambda handler, body: _changed(
        handler, body, policy_state=handler.server.fold.policy.start(epoch=7).state.model_dump_json()
    ),
}
