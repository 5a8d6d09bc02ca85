"""Event streams: a snapshot, then what happened since, read from the job's shared, bounded memory.

A reader holds no queue: it holds the journal line it has seen. A slow reader therefore costs nothing, and when it
has fallen out of that memory it gets a fresh snapshot. Each message is encoded once for all readers.
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
from gravac_controller.live.messages import EndView, EventDelta, JobDelta, WindowDelta
from gravac_controller.live.present import job_view, snapshot
from gravac_controller.live.projection import LiveJob
from gravac_controller.live.recent import Moment
from gravac_controller.settings import ControllerSettings

logger = logging.getLogger("gravac.controller")

MAX_MOMENTS = 64
"""More than this at once are sent as a snapshot: cheaper for both sides."""
CACHED_DELTAS = 64
CACHED_SNAPSHOTS = 4
GOODBYE_SECONDS = 0.2


class Streams:
    """All open event streams of the process: how many, how to end them, and the messages they share."""

    def __init__(self, settings: ControllerSettings) -> None:
        self.settings = settings
        self.stopping = asyncio.Event()
        self.open = 0
        self._deltas: dict[tuple[object, ...], bytes] = {}
        self._snapshots: dict[tuple[object, ...], bytes] = {}

    @property
    def full(self) -> bool:
        """Whether another stream would be one too many."""
        return self.open >= self.settings.max_streams

    def stop(self) -> None:
        """End every stream: the server shuts down."""
        self.stopping.set()

    async def read(self, job: Job, after: int | None) -> AsyncIterator[bytes]:
        """What one reader is sent, without end. ``after``: the journal line it knows; null for a new reader."""
        cursor, shown = after, job.live.state()
        while True:
            live = job.live
            changed = live.changed
            fresh = None if cursor is None else live.moments_after(cursor)
            state = live.state()
            if fresh is None or len(fresh) > MAX_MOMENTS:
                cursor = live.line
                yield self._message(live, "snapshot", cursor)
            elif fresh:
                cursor = live.line
                for moment in fresh:
                    yield self._message(live, moment.kind, moment.line, moment)
            elif state != shown:
                yield _encode("job", JobDelta(job=job_view(live)))
            shown = state
            while not await _set_within(changed, self.settings.stream_ping_seconds):
                if live.state() != shown:
                    break
                yield KEEPALIVE_COMMENT
            await asyncio.sleep(self.settings.stream_interval_seconds)

    def _message(self, live: LiveJob, kind: str, line: int, moment: Moment | None = None) -> bytes:
        spec, _ = live.known()
        cache, limit = (
            (self._snapshots, CACHED_SNAPSHOTS) if moment is None else (self._deltas, CACHED_DELTAS)
        )
        key = (spec.job, line, kind, live.line, live.state())
        if key not in cache:
            while len(cache) >= limit:
                del cache[next(iter(cache))]
            record = snapshot(live) if moment is None else _delta(live, moment)
            cache[key] = _encode(kind, record, line)
        return cache[key]


class EventStream(Response):
    """The answer that sends ``Streams.read`` until the reader leaves, stalls, or the server stops."""

    media_type = "text/event-stream"

    def __init__(self, streams: Streams, job: Job, after: int | None, status_code: int = 200) -> None:
        super().__init__(status_code=status_code)  # a parameter because FastAPI's OpenAPI looks for it
        self._streams, self._job, self._after = streams, job, after
        del self.headers["content-length"]
        self.headers["x-accel-buffering"] = "no"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until one of the three ends it; a reader that takes nothing for too long counts as gone."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if scope.get("gravac.head"):
            await send({"type": "http.response.body", "body": b""})
            return
        self._streams.open += 1
        tasks = [
            asyncio.create_task(self._pump(send)),
            asyncio.create_task(_gone(receive)),
            asyncio.create_task(self._streams.stopping.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.open -= 1
            for task in tasks:
                task.cancel()
            pumped, *_ = await asyncio.gather(*tasks, return_exceptions=True)
            if isinstance(pumped, Exception) and not isinstance(pumped, TimeoutError | OSError):
                logger.error("an event stream failed", exc_info=pumped)
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await send({"type": "http.response.body", "body": b""})

    async def _pump(self, send: Send) -> None:
        async for message in self._streams.read(self._job, self._after):
            async with asyncio.timeout(self._streams.settings.stream_stall_seconds):
                await send({"type": "http.response.body", "body": message, "more_body": True})


def _delta(live: LiveJob, moment: Moment) -> Record:
    job = job_view(live)
    if moment.window is not None and moment.decision is not None:
        return WindowDelta(window=moment.window, decision=moment.decision, job=job)
    if moment.event is not None:
        return EventDelta(event=moment.event, job=job)
    return EndView(time=moment.time, message=moment.end or "", job=job)


def _encode(name: str, record: Record, line: int | None = None) -> bytes:
    number = None if line is None else str(line)
    return format_sse_event(data_str=record.model_dump_json(), event=name, id=number)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
