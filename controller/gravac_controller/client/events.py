"""Reads server-sent events as typed messages."""

import http.client
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from gravac_controller.client.connection import NoController, NotAController
from gravac_controller.views.models import EndView, EventDelta, JobDelta, Snapshot, WindowDelta

KINDS: dict[str, type[Snapshot | WindowDelta | EventDelta | EndView | JobDelta]] = {
    "snapshot": Snapshot,
    "window": WindowDelta,
    "event": EventDelta,
    "end": EndView,
    "job": JobDelta,
}
MOST_LINE_BYTES = 64_000_000


@dataclass(frozen=True)
class Message:
    """One message. ``id``: where to resume (None where the message has none)."""

    kind: str
    id: str | None
    data: Snapshot | WindowDelta | EventDelta | EndView | JobDelta


def messages(response: http.client.HTTPResponse) -> Iterator[Message]:
    """Return the messages until the server ends the stream.

    Raises:
        NoController: The connection broke.
        NotAController: A message is unknown.
    """
    fields: dict[str, str] = {}
    while True:
        try:
            raw = response.readline(MOST_LINE_BYTES)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoController(f"the event stream broke ({error or type(error).__name__})") from None
        if not raw:
            return
        line = raw.decode(errors="replace").rstrip("\r\n")
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            yield _message(fields)
            fields = {}
        else:
            fields = {}  # a comment that keeps the connection alive


def _message(fields: dict[str, str]) -> Message:
    kind = fields.get("event", "")
    try:
        return Message(kind, fields.get("id"), KINDS[kind].model_validate_json(fields["data"]))
    except (KeyError, ValidationError):
        raise NotAController(f"the event stream sent {kind!r}, which this version does not know") from None
