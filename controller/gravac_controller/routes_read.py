"""GET routes about jobs. They change nothing."""

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query
from fastapi.responses import StreamingResponse
from starlette.responses import Response

from gravac.protocol import Record
from gravac_controller import pages, present
from gravac_controller.services import Services
from gravac_controller.stream import EventStream
from gravac_controller.views import (
    CandidatesView,
    DecisionView,
    JobList,
    JobView,
    Page,
    RanksView,
    UnreadableJob,
    WindowView,
)

JobName = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="Name of the job.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Most items on the page.")]
AfterWindow = Annotated[
    int | None,
    Query(ge=-1, le=2**53, description="Only windows after this one: the ``next`` of the page before."),
]
COPY_BYTES = 65536


def json_answer(record: Record) -> Response:
    """A record as JSON, written by pydantic (deterministic, no NaN)."""
    return Response(record.model_dump_json(), media_type="application/json")


def read_routes(services: Services) -> APIRouter:
    """The routes, bound to one controller."""
    router = APIRouter(prefix="/v1", tags=["jobs"])
    store = services.store

    @router.get("/jobs", response_model=JobList, summary="All jobs, by name")
    async def jobs(
        limit: Limit = 100,
        after: Annotated[
            str | None,
            Query(max_length=64, description="Only names after this one: ``next`` of the page before."),
        ] = None,
    ) -> Response:
        names = [name for name in sorted(store.jobs) if after is None or name > after]
        shown = names[:limit]
        items = tuple(present.summary(store.jobs[name].live) for name in shown)
        unreadable = tuple(UnreadableJob(job=job, reason=why) for job, why in store.unreadable.items())
        more = shown[-1] if len(names) > limit else None
        return json_answer(JobList(items=items, next=more, unreadable=unreadable))

    @router.get("/jobs/{job}", response_model=JobView, summary="One job: state, decision in force and why")
    async def job_view(job: JobName) -> Response:
        return json_answer(present.job_view(store.get(job).live))

    @router.get("/jobs/{job}/windows", response_model=Page[WindowView], summary="Windows, oldest first")
    async def windows(job: JobName, limit: Limit = 100, after: AfterWindow = None) -> Response:
        return json_answer(await pages.windows(store.get(job), after, limit))

    @router.get("/jobs/{job}/decisions", response_model=Page[DecisionView], summary="Decisions, oldest first")
    async def decisions(job: JobName, limit: Limit = 100, after: AfterWindow = None) -> Response:
        return json_answer(await pages.decisions(store.get(job), after, limit))

    @router.get("/jobs/{job}/candidates", response_model=CandidatesView, summary="What is known of each CF")
    async def candidates(job: JobName) -> Response:
        return json_answer(present.candidates(store.get(job).live))

    @router.get("/jobs/{job}/ranks", response_model=RanksView, summary="Each rank in the last window")
    async def ranks(job: JobName) -> Response:
        return json_answer(present.ranks(store.get(job).live))

    @router.get(
        "/jobs/{job}/events",
        summary="Live: a snapshot, then what happens (server-sent events)",
        response_class=EventStream,
        responses={200: {"content": {"text/event-stream": {}}, "description": "Messages: see Snapshot."}},
    )
    async def events(
        job: JobName,
        last_event_id: Annotated[
            str | None, Header(description="Id of the last message seen: only what came later is sent.")
        ] = None,
    ) -> Response:
        return EventStream(services.streams, store.get(job), _line(last_event_id))

    @router.get(
        "/jobs/{job}/trace",
        summary="Download the journal: replay it with `gravac replay`",
        response_class=StreamingResponse,
        responses={200: {"content": {"application/x-ndjson": {}}, "description": "The journal so far."}},
    )
    async def trace(job: JobName) -> Response:
        known = store.get(job)
        size = known.journal_bytes
        return StreamingResponse(
            _copy(known.path, size),
            media_type="application/x-ndjson",
            headers={
                "content-disposition": f'attachment; filename="{job}.jsonl"',
                "content-length": str(size),
            },
        )

    return router


def _line(last_event_id: str | None) -> int | None:
    """The journal line in a Last-Event-ID; null (a snapshot, then) for anything that is not one."""
    text = last_event_id or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None


def _copy(path: FilePath, size: int) -> Iterator[bytes]:
    """The first ``size`` bytes of a file that only grows."""
    with path.open("rb") as file:
        while size > 0:
            piece = file.read(min(size, COPY_BYTES))
            if not piece:
                return
            size -= len(piece)
            yield piece
