"""GET routes about jobs. They change nothing."""

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from starlette.responses import Response

from gravac_controller.api.answers import NOT_MODIFIED, tagged
from gravac_controller.api.openapi import problems
from gravac_controller.api.parameters import (
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
from gravac_controller.api.problems import ApiError
from gravac_controller.api.services import Services
from gravac_controller.api.stream import EventStream
from gravac_controller.jobs import pages
from gravac_controller.jobs.cursor import Cursor
from gravac_controller.jobs.filters import DecisionFilter, WindowFilter
from gravac_controller.live import present
from gravac_controller.views.models import (
    CandidatesView,
    DecisionView,
    JobList,
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
    """The routes, bound to one controller."""
    router = APIRouter(prefix="/v1", tags=["jobs"])
    store = services.store

    @router.get("/jobs", response_model=JobList, responses=NOT_MODIFIED, summary="All jobs, by name")
    async def jobs(
        request: Request, limit: Limit = 100, after: AfterName = None, state: OfState = None
    ) -> Response:
        """A line each, with state, phase and CF. `unreadable` names journals that cannot be served, and why."""
        names = sorted(name for name in store.jobs if after is None or name > after)
        if state is not None:
            names = [name for name in names if store.jobs[name].live.state() == state]
        shown = names[:limit]
        items = tuple(present.summary(store.jobs[name].live) for name in shown)
        unreadable = tuple(UnreadableJob(job=job, reason=why) for job, why in store.unreadable.items())
        more = shown[-1] if len(names) > limit else None
        return tagged(request, JobList(items=items, next=more, unreadable=unreadable))

    @router.get(
        "/jobs/{job}",
        response_model=JobView,
        responses=OF_A_JOB,
        summary="One job: state, decision in force and why",
    )
    async def job_view(request: Request, job: JobName) -> Response:
        """With the last window, totals over all windows, and the last 100 events."""
        return tagged(request, present.job_view(store.get(job).live))

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
        """As reported, with what follows from them: gain, backlog, T_sys, T_comp, wire CF.

        A page that a filter leaves little of may be short, or empty, and still have a `next`.
        """
        wanted = WindowFilter(from_step, to_step, epoch, phase)
        page = await pages.windows(store.get(job), _cursor(after), limit, wanted)
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
        """One a window, each with its reason as a sentence and the candidates as they stood."""
        wanted = DecisionFilter(phase, rule, epoch, changed)
        return tagged(request, await pages.decisions(store.get(job), _cursor(after), limit, wanted))

    @router.get(
        "/jobs/{job}/candidates",
        response_model=CandidatesView,
        responses=OF_A_JOB,
        summary="What is known of each CF",
    )
    async def candidates(request: Request, job: JobName) -> Response:
        """The ladder as of the decision in force: gain, T_sys, T_comp and a verdict for each rung."""
        return tagged(request, present.candidates(store.get(job).live))

    @router.get(
        "/jobs/{job}/ranks",
        response_model=RanksView,
        responses=OF_A_JOB,
        summary="Each rank in the last window",
    )
    async def ranks(request: Request, job: JobName) -> Response:
        """Step time, phases, and speed relative to the fastest rank, by each rank's own work."""
        return tagged(request, present.ranks(store.get(job).live))

    @router.get(
        "/jobs/{job}/ranks/history",
        response_model=RankHeatView,
        responses=OF_A_JOB,
        summary="Which rank was slow when",
    )
    async def rank_heat(request: Request, job: JobName) -> Response:
        """Own time by rank and window, over the whole job. Long and wide jobs have windows, and ranks, put together:
        then a cell is the slowest of them."""
        return tagged(request, present.rank_heat(store.get(job).live))

    @router.get(
        "/jobs/{job}/events",
        summary="Live: a snapshot, then what happens (server-sent events)",
        response_class=EventStream,
        responses=problems(404, 409, 503)
        | {200: {"content": {"text/event-stream": {}}, "description": "Messages: see Snapshot."}},
    )
    async def events(job: JobName, last_event_id: LastEventId = None) -> Response:
        """Messages: `snapshot`, `window`, `event`, `end`, `job`; their data are the schemas Snapshot, WindowDelta,
        EventDelta, EndView, JobDelta. The stream has no end; come back with the last id to miss nothing."""
        known = store.get(job)
        if services.streams.full:
            raise ApiError(
                503,
                f"{services.streams.open} event streams are open, which is the limit; close some, or raise "
                "GRAVAC_CONTROLLER_MAX_STREAMS",
                reason="too_many_streams",
                headers={"retry-after": "10"},
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
        """One JSON object a line, each sealed with a digest over the one before."""
        journal = store.get(job).journal
        end = journal.end
        try:
            size = journal.reader.size(end)
        except OSError as error:
            raise ApiError(503, f"the journal cannot be read: {error}", reason="journal") from error
        return StreamingResponse(
            journal.reader.raw(end),
            media_type="application/x-ndjson",
            headers={
                "content-disposition": f'attachment; filename="{job}.jsonl"',
                "content-length": str(size),
            },
        )

    return router


def _without_ranks(page: Page[WindowView]) -> Page[WindowView]:
    bare = (
        view.model_copy(update={"report": view.report.model_copy(update={"ranks": ()})})
        for view in page.items
    )
    return page.model_copy(update={"items": tuple(bare)})


def _cursor(text: str | None) -> Cursor | None:
    return None if text is None else Cursor.parse(text)


def _line(last_event_id: str | None) -> int | None:
    """The journal line in a Last-Event-ID; null (a snapshot, then) for anything that is not one."""
    text = last_event_id or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None
