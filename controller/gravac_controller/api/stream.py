"""Event streams: a snapshot, then the changes since, from the job's shared and bounded history.

A reader has no queue, only the number of the last journal line that it was sent. So a slow reader costs nothing; once
history no longer reaches back to its line, it gets a new snapshot. Each message is encoded once for all readers.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gravac.protocol import Record
from gravac_controller.jobs.job import Job
from gravac_controller.live.job_views import job_view, snapshot
from gravac_controller.live.projection import LiveJob
from gravac_controller.live.recent import Change
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.models import EndView, EventDelta, JobDelta, WindowDelta

logger = logging.getLogger("gravac.controller")

MAX_CHANGES = 64
"""More changes at once are sent as a snapshot, which is cheaper for both sides."""
CACHED_DELTAS = 64
CACHED_SNAPSHOTS = 4
GOODBYE_SECONDS = 0.2


class Streams:
    """All open event streams of the process: their number, their end, and the messages that they share."""

    def __init__(self, settings: ControllerSettings) -> None:
        self.settings = settings
        self.stopping = asyncio.Event()
        self.open = 0
        self._deltas: dict[tuple[object, ...], bytes] = {}
        self._snapshots: dict[tuple[object, ...], bytes] = {}

    @property
    def full(self) -> bool:
        """Return whether the limit on streams is reached."""
        return self.open >= self.settings.limits.max_streams

    def stop(self) -> None:
        """End every stream: the server shuts down."""
        self.stopping.set()

    async def read(self, job: Job, after: int | None) -> AsyncIterator[bytes]:
        """Yield the messages for one reader, without end. ``after``: its last journal line; None for a new reader."""
        cursor, sent_state = after, job.live.state()
        while True:
            live = job.live
            changed = live.recent.changed
            fresh = None if cursor is None else live.changes_after(cursor)
            state = live.state()
            if fresh is None or len(fresh) > MAX_CHANGES:
                cursor = live.line
                yield self._message(live, "snapshot", cursor)
            elif fresh:
                cursor = live.line
                for change in fresh:
                    yield self._message(live, change.kind, change.line, change)
            elif state != sent_state:
                yield _encode("job", JobDelta(job=job_view(live)))
            sent_state = state
            while not await _set_within(changed, self.settings.limits.stream_ping_seconds):
                if live.state() != sent_state:
                    break
                yield KEEPALIVE_COMMENT
            await asyncio.sleep(self.settings.limits.stream_interval_seconds)

    def _message(self, live: LiveJob, kind: str, line: int, change: Change | None = None) -> bytes:
        spec, _ = live.spec_and_decision()
        cache, limit = (
            (self._snapshots, CACHED_SNAPSHOTS) if change is None else (self._deltas, CACHED_DELTAS)
        )
        key = (spec.job, line, kind, live.line, live.state())
        if key not in cache:
            while len(cache) >= limit:
                del cache[next(iter(cache))]
            record = snapshot(live) if change is None else _delta(live, change)
            cache[key] = _encode(kind, record, line)
        return cache[key]


class EventStream(Response):
    """The answer that sends ``Streams.read`` until the reader disconnects, or the server stops."""

    media_type = "text/event-stream"

    def __init__(self, streams: Streams, job: Job, after: int | None, status_code: int = 200) -> None:
        super().__init__(status_code=status_code)  # a parameter because FastAPI's OpenAPI expects it
        self._streams, self._job, self._after = streams, job, after
        del self.headers["content-length"]
        self.headers["x-accel-buffering"] = "no"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until one of the two happens. The server disconnects a reader that accepts no data for too long."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if scope.get("gravac.head"):
            await send({"type": "http.response.body", "body": b""})
            return
        self._streams.open += 1
        tasks = [
            asyncio.create_task(self._pump(send)),
            asyncio.create_task(_disconnected(receive)),
            asyncio.create_task(self._streams.stopping.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.open -= 1
            for task in tasks:
                task.cancel()
            pumped, *_ = await asyncio.gather(*tasks, return_exceptions=True)
            if isinstance(pumped, Exception) and not isinstance(pumped, OSError):
                logger.error("an event stream failed", exc_info=pumped)
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await send({"type": "http.response.body", "body": b""})

    async def _pump(self, send: Send) -> None:
        async for message in self._streams.read(self._job, self._after):
            await send({"type": "http.response.body", "body": message, "more_body": True})


def _delta(live: LiveJob, change: Change) -> Record:
    job = job_view(live)
    if change.window is not None and change.decision is not None:
        window = live.recent.without_many_ranks(change.window)  # which ``job.latest`` has, once
        return WindowDelta(window=window, decision=change.decision, job=job)
    if change.event is not None:
        return EventDelta(event=change.event, job=job)
    return EndView(time=change.time, message=change.end or "", job=job)


def _encode(name: str, record: Record, line: int | None = None) -> bytes:
    number = None if line is None else str(line)
    return format_sse_event(data_str=record.model_dump_json(), event=name, id=number)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
