"""The client: a method for each route."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote, urlencode

from pydantic import ValidationError

from gravac.protocol import Order, Phase, Record, Rule
from gravac.token_connection import HttpAnswer
from gravac_controller.client.connection import ClientConnection, NotAController
from gravac_controller.client.events import Message, messages
from gravac_controller.views.models import (
    CandidatesView,
    DecisionView,
    Health,
    JobList,
    JobSummary,
    JobView,
    LiveState,
    OverrideView,
    Page,
    RankHeatView,
    RanksView,
    UnreadableJob,
    WindowView,
)

R = TypeVar("R", bound=Record)
V = TypeVar("V", WindowView, DecisionView)

STREAM_SECONDS = 60.0
"""Timeout of an event stream. The controller sends a keep-alive every 15 s."""
REMEMBERED = 256
PIECE = 1 << 16


@dataclass(frozen=True)
class OverrideState:
    """Who decides, and the ETag that an order about this state must name."""

    view: OverrideView
    tag: str


class Client:
    """A client of the controller at ``url``.

    Answers that have not changed since the last request are not sent again (ETags). Not thread-safe. Every method
    raises NoController, NotAController or Refused.
    """

    def __init__(self, url: str, token: str | None = None, *, seconds: float = 5.0) -> None:
        """Open no connection yet.

        Args:
            url: Address, such as ``http://127.0.0.1:8756``.
            token: The agents' token to read, where the controller needs it; the control token to steer.
            seconds: Timeout of each read.

        Raises:
            ValueError: ``url`` is not an address.
        """
        self._connection = ClientConnection(url, token, seconds)
        self._known: dict[str, tuple[str, Record]] = {}

    @property
    def url(self) -> str:
        """The address, scheme://host:port."""
        return self._connection.url

    @property
    def shows_token(self) -> bool:
        """Whether its requests carry a token."""
        return self._connection.token is not None

    def health(self) -> Health:
        """Return whether the controller runs, and its instance: ``/healthz``."""
        return self._get("/healthz", Health)

    def jobs(self, state: LiveState | None = None) -> Iterator[JobSummary]:
        """Return all jobs by name: ``/v1/jobs``."""
        after: str | None = None
        while True:
            page = self._get(_path("/v1/jobs", state=state, after=after), JobList)
            yield from page.items
            if page.next is None:
                return
            after = page.next

    def unreadable(self) -> tuple[UnreadableJob, ...]:
        """Journals that the controller cannot read: ``/v1/jobs``."""
        return self._get(_path("/v1/jobs", limit=1), JobList).unreadable

    def job(self, name: str) -> JobView:
        """State, decision in force with its reason, last window, totals: ``/v1/jobs/{job}``."""
        return self._get(_job(name), JobView)

    def windows(
        self,
        name: str,
        *,
        after: str | int | None = None,
        from_step: int | None = None,
        to_step: int | None = None,
        epoch: int | None = None,
        phase: Phase | None = None,
    ) -> Iterator[WindowView]:
        """Windows, oldest first, from all pages: ``/v1/jobs/{job}/windows``."""
        wanted = {"from_step": from_step, "to_step": to_step, "epoch": epoch, "phase": phase}
        return self._pages(name, "windows", Page[WindowView], after, wanted)

    def decisions(
        self,
        name: str,
        *,
        after: str | int | None = None,
        phase: Phase | None = None,
        rule: Rule | None = None,
        epoch: int | None = None,
        changed: bool | None = None,
    ) -> Iterator[DecisionView]:
        """Decisions with their reasons, oldest first: ``/v1/jobs/{job}/decisions``."""
        wanted = {"phase": phase, "rule": rule, "epoch": epoch, "changed": changed}
        return self._pages(name, "decisions", Page[DecisionView], after, wanted)

    def candidates(self, name: str) -> CandidatesView:
        """Return the measurements of each CF: ``/v1/jobs/{job}/candidates``."""
        return self._get(_job(name, "candidates"), CandidatesView)

    def ranks(self, name: str) -> RanksView:
        """Each rank in the last window: ``/v1/jobs/{job}/ranks``."""
        return self._get(_job(name, "ranks"), RanksView)

    def rank_heat(self, name: str) -> RankHeatView:
        """Return the own time of each rank by window: ``/v1/jobs/{job}/ranks/history``."""
        return self._get(_job(name, "ranks/history"), RankHeatView)

    def events(self, name: str, after: str | None = None) -> Iterator[Message]:
        """Stream events on a separate connection: ``/v1/jobs/{job}/events``.

        Begins with a snapshot, or with the messages after the one with id ``after``. Ends when the server ends it.
        """
        headers = {} if after is None else {"Last-Event-ID": after}
        with self._connection.open(_job(name, "events"), headers, STREAM_SECONDS) as response:
            yield from messages(response)

    def trace(self, name: str, file: Path) -> int:
        """Save the journal to ``file`` and return its size in bytes: ``/v1/jobs/{job}/trace``.

        ``gravac replay`` reads it. Raises OSError where ``file`` cannot be written.
        """
        written = 0
        with (
            self._connection.open(_job(name, "trace"), {}, STREAM_SECONDS) as response,
            file.open("wb") as out,
        ):
            while piece := self._connection.piece(response, PIECE):
                written += out.write(piece)
        return written

    def override(self, name: str) -> OverrideState:
        """Who decides, the policy or an operator: ``/v1/jobs/{job}/override``."""
        return _override_state(self._connection.ask("GET", _job(name, "override")), self.url)

    def order(
        self,
        name: str,
        action: Literal["pin", "dense", "pause", "resume"],
        *,
        actor: str,
        current: OverrideState,
        cf: float | None = None,
        codec: str | None = None,
        note: str = "",
    ) -> OverrideState:
        """Give an order, which takes effect with the next window. Needs the control token.

        Args:
            name: The job.
            action: What to do.
            actor: Name of the operator, for the journal.
            current: The state that the order is based on, from ``override``.
            cf: The compression factor of ``pin``.
            codec: The codec of ``pin``: the job's compressor or another that its policy may choose; None: no change.
            note: The reason, for the journal.

        Raises:
            pydantic.ValidationError: The order is invalid.
            Refused: With status 412 where the job has a newer decision than ``current``.
        """
        body = Order(action=action, cf=cf, codec=codec, actor=actor, note=note).model_dump_json().encode()
        headers = {"If-Match": current.tag}
        return _override_state(self._connection.ask("PUT", _job(name, "override"), body, headers), self.url)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _pages(
        self, name: str, what: str, page: type[Page[V]], after: str | int | None, wanted: Mapping[str, Any]
    ) -> Iterator[V]:
        cursor: str | int | None = after
        while True:
            path = _path(_job(name, what), limit=500, after=cursor, **wanted)
            found = _parse(self._connection.ask("GET", path).body, page, self.url)
            yield from found.items
            if found.next is None:
                return
            cursor = found.next

    def _get(self, path: str, model: type[R]) -> R:
        tag, known = self._known.get(path, (None, None))
        answer = self._connection.ask("GET", path, None, {} if tag is None else {"If-None-Match": tag})
        if answer.status == 304 and isinstance(known, model):
            return known
        record = _parse(answer.body, model, self.url)
        if "etag" in answer.headers:
            self._known.pop(path, None)
            self._known[path] = (answer.headers["etag"], record)
            if len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
        return record


def _parse(body: bytes, model: type[R], url: str) -> R:
    try:
        return model.model_validate_json(body)
    except ValidationError:
        raise NotAController(f"the server at {url} is not a gravac controller of this version") from None


def _override_state(answer: HttpAnswer, url: str) -> OverrideState:
    return OverrideState(_parse(answer.body, OverrideView, url), answer.headers.get("etag", ""))


def _job(name: str, what: str = "") -> str:
    return f"/v1/jobs/{quote(name, safe='')}" + (f"/{what}" if what else "")


def _path(path: str, **query: object) -> str:
    given = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in query.items()
        if value is not None
    }
    return f"{path}?{urlencode(given)}" if given else path
