"""GET routes of jobs. They change nothing."""

import contextlib

import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from starlette.responses import Response

from gravac.traces import TraceError
from gravac_controller.api.openapi import problems
from gravac_controller.api.requests import (
    After,
    AfterName,
    Changed,
    Epoch,
    FromStep,
    JobName,
    LastEventId,
    Limit,
    OfPhase,
    OfRule,
    OfState,
    ToStep,
    WithRanks,
)
from gravac_controller.api.responses import NOT_MODIFIED, tagged
from gravac_controller.api.services import Services
from gravac_controller.api.stream import EventStream
from gravac_controller.errors import Unavailable
from gravac_controller.jobs import pages, refusals
from gravac_controller.jobs.filters import DecisionFilter, WindowFilter
from gravac_controller.jobs.store import Store
from gravac_controller.live import job_views
from gravac_controller.views.models import (
    CandidatesView,
    DecisionView,
    JobList,
    JobSummary,
    JobView,
    Page,
    RankHeatView,
    RanksView,
    UnreadableJob,
    WindowView,
)

OF_A_JOB = NOT_MODIFIED | problems(404, 409)
FROM_DISK = OF_A_JOB | problems(503)


def read_routes(services: Services) -> APIRouter:
    """Return the routes of one controller."""
    router = APIRouter(prefix="/v1", tags=["jobs"])
    store = services.store

    @router.get("/jobs", response_model=JobList, responses=NOT_MODIFIED, summary="All jobs, by name")
    async def jobs(
        request: Request, limit: Limit = 100, after: AfterName = None, state: OfState = None
    ) -> Response:
        """State, phase and CF of each job. `unreadable` lists journals that cannot be served, and why."""
        names = sorted(name for name in store.jobs if after is None or name > after)
        if state is not None:
            names = [name for name in names if store.jobs[name].state() == state]
        shown = names[:limit]
        items = await anyio.to_thread.run_sync(_summaries, store, shown)
        unreadable = tuple(UnreadableJob(job=job, reason=why) for job, why in store.unreadable.items())
        more = shown[-1] if len(names) > limit else None
        return tagged(request, JobList(items=items, next=more, unreadable=unreadable))

    @router.get(
        "/jobs/{job}",
        response_model=JobView,
        responses=OF_A_JOB,
        summary="One job: state, and the decision in force with its reason",
    )
    async def job_view(request: Request, job: JobName) -> Response:
        """Includes the last window, totals of the present start, and the last 100 events."""
        return tagged(request, job_views.job_view((await store.awake(job)).live))

    @router.get(
        "/jobs/{job}/windows",
        response_model=Page[WindowView],
        responses=FROM_DISK,
        summary="Windows, oldest first",
    )
    async def windows(
        request: Request,
        job: JobName,
        limit: Limit = 100,
        after: After = None,
        from_step: FromStep = None,
        to_step: ToStep = None,
        epoch: Epoch = None,
        phase: OfPhase = None,
        with_ranks: WithRanks = True,
    ) -> Response:
        """Windows are as reported, with derived figures: gain, backlog, efficiency, T_sys, useful throughput, T_comp,
        wire CF.

        With a filter a page may be short, or even empty, and still have a `next`.
        """
        wanted = WindowFilter(from_step, to_step, epoch, phase)
        page = await pages.windows(await store.awake(job), _cursor(after), limit, wanted)
        return tagged(request, page if with_ranks else _without_ranks(page))

    @router.get(
        "/jobs/{job}/decisions",
        response_model=Page[DecisionView],
        responses=FROM_DISK,
        summary="Decisions, oldest first",
    )
    async def decisions(
        request: Request,
        job: JobName,
        limit: Limit = 100,
        after: After = None,
        phase: OfPhase = None,
        rule: OfRule = None,
        epoch: Epoch = None,
        changed: Changed = None,
    ) -> Response:
        """One decision a window, with its reason as a sentence and the candidates at that time."""
        wanted = DecisionFilter(phase, rule, epoch, changed)
        return tagged(request, await pages.decisions(await store.awake(job), _cursor(after), limit, wanted))

    @router.get(
        "/jobs/{job}/candidates",
        response_model=CandidatesView,
        responses=OF_A_JOB,
        summary="What is known about each CF",
    )
    async def candidates(request: Request, job: JobName) -> Response:
        """The plans at the decision in force: gain, efficiency, speed, what the policy maximizes, verdict."""
        return tagged(request, job_views.candidates((await store.awake(job)).live))

    @router.get(
        "/jobs/{job}/ranks",
        response_model=RanksView,
        responses=OF_A_JOB,
        summary="Each rank in the last window",
    )
    async def ranks(request: Request, job: JobName) -> Response:
        """Step time, phases, and speed relative to the fastest rank, by each rank's own work."""
        return tagged(request, job_views.ranks((await store.awake(job)).live))

    @router.get(
        "/jobs/{job}/ranks/history",
        response_model=RankHeatView,
        responses=OF_A_JOB,
        summary="Own time by rank and window",
    )
    async def rank_heat(request: Request, job: JobName) -> Response:
        """Shows which rank was slow when, over the whole job. In long or wide jobs windows or ranks are merged: then
        a cell shows the slowest of them."""
        return tagged(request, job_views.rank_heat((await store.awake(job)).live))

    @router.get(
        "/jobs/{job}/events",
        summary="Live: a snapshot, then changes (server-sent events)",
        response_class=EventStream,
        responses=problems(404, 409, 503)
        | {200: {"content": {"text/event-stream": {}}, "description": "Messages: see Snapshot."}},
    )
    async def events(job: JobName, last_event_id: LastEventId = None) -> Response:
        """Messages: `snapshot`, `window`, `event`, `end`, `job`; their data are the schemas Snapshot, WindowDelta,
        EventDelta, EndView, JobDelta. The stream has no end; reconnect with the last id to miss nothing."""
        known = await store.awake(job)
        if services.streams.full:
            raise Unavailable(
                f"{services.streams.open} event streams are open, which is the limit: close some",
                reason="too_many_streams",
                retry_after=10,
            )
        return EventStream(services.streams, known, _line(last_event_id))

    @router.get(
        "/jobs/{job}/trace",
        summary="Download the journal: replay it with `gravac replay`",
        response_class=StreamingResponse,
        responses=problems(404, 409, 503)
        | {200: {"content": {"application/x-ndjson": {}}, "description": "The journal so far."}},
    )
    async def trace(job: JobName) -> Response:
        """One JSON object a line, each with a digest over the line before."""
        journal = (await store.awake(job)).journal
        end = journal.end
        try:
            size = journal.reader.size(end)
        except OSError as error:
            raise refusals.journal_unreadable(error) from error
        return StreamingResponse(
            journal.reader.raw(end),
            media_type="application/x-ndjson",
            headers={
                "content-disposition": f'attachment; filename="{job}.jsonl"',
                "content-length": str(size),
            },
        )

    return router


def _summaries(store: Store, names: list[str]) -> tuple[JobSummary, ...]:
    found = []
    for name in names:
        with contextlib.suppress(KeyError, OSError, TraceError):  # gone, or found to be damaged meanwhile
            found.append(store.jobs[name].summary())
    return tuple(found)


def _without_ranks(page: Page[WindowView]) -> Page[WindowView]:
    bare = (
        view.model_copy(update={"report": view.report.model_copy(update={"ranks": ()})})
        for view in page.items
    )
    return page.model_copy(update={"items": tuple(bare)})


def _cursor(text: str | None) -> pages.Cursor | None:
    return None if text is None else pages.Cursor.parse(text)


def _line(last_event_id: str | None) -> int | None:
    """Return the journal line in a Last-Event-ID; None (so a snapshot is sent) for anything else."""
    text = last_event_id or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None
