"""POST routes for agents. Each is idempotent: an agent repeats a request until it is answered."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from gravac.protocol import End, Event, JobAnswer, JobSpec, WindowAnswer, WindowReport
from gravac_controller.api.openapi import TAKING_BODIES, takes
from gravac_controller.api.requests import JobName, read_record
from gravac_controller.api.responses import json_answer
from gravac_controller.api.services import Services
from gravac_controller.jobs.checks import check_event, check_same_job
from gravac_controller.live import job_views
from gravac_controller.views.models import EventView, JobSummary


def agent_routes(services: Services) -> APIRouter:
    """Return the routes of one controller."""
    router = APIRouter(prefix="/v1", tags=["agents"])
    store, settings = services.store, services.settings

    @router.post(
        "/jobs",
        response_model=JobAnswer,
        responses=TAKING_BODIES,
        openapi_extra=takes(JobSpec),
        summary="Register or resume a job",
    )
    async def register(request: Request) -> Response:
        """Answers with the decision to begin with and the number of the next window.

        The same start of the trainer (`incarnation`) may register again. A new one takes the job over once the
        registered one has ended or been silent for 2.5 of its windows (2 to 30 s). Until then it gets a 409 with
        reason `job_is_live`. Reports of a replaced start get a 409 with reason `superseded`.
        """
        spec = await read_record(request, JobSpec, settings)
        return json_answer(await store.register(spec))

    @router.post(
        "/jobs/{job}/windows",
        response_model=WindowAnswer,
        responses=TAKING_BODIES,
        openapi_extra=takes(WindowReport),
        summary="Report a window and get the decision in force",
    )
    async def window(job: JobName, request: Request) -> Response:
        """The window and the decision on it are on disk before the answer. Windows are numbered without gaps; a
        later one is accepted, and the gap is recorded."""
        report = await read_record(request, WindowReport, settings)
        check_same_job(job, report.job)
        return json_answer(await (await store.awake(job)).window(report))

    @router.post(
        "/jobs/{job}/events",
        response_model=EventView,
        responses=TAKING_BODIES,
        openapi_extra=takes(Event),
        summary="Report an event other than a window",
    )
    async def event(job: JobName, request: Request) -> Response:
        """An event is for people and the list of faults. No decision depends on it."""
        reported = await read_record(request, Event, settings)
        check_event(reported)
        return json_answer(await (await store.awake(job)).event(reported))

    @router.post(
        "/jobs/{job}/end",
        response_model=JobSummary,
        responses=TAKING_BODIES,
        openapi_extra=takes(End),
        summary="Report that the trainer closed its agent",
    )
    async def end(job: JobName, request: Request) -> Response:
        """The job stays listed, and a new start of the trainer may resume it."""
        known = await store.awake(job)
        await known.end(await read_record(request, End, settings))
        return json_answer(job_views.summary(known.live))

    return router
