"""POST routes for agents. Each is idempotent: an agent repeats a request until it is answered."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from gravac.protocol import End, Event, JobAnswer, JobSpec, WindowAnswer, WindowReport
from gravac_controller.api import examples
from gravac_controller.api.answers import json_answer
from gravac_controller.api.bodies import read_record
from gravac_controller.api.openapi import TAKING_BODIES, takes
from gravac_controller.api.parameters import JobName
from gravac_controller.api.services import Services
from gravac_controller.jobs.checks import check_event, check_same_job
from gravac_controller.live import present
from gravac_controller.views.models import EventView, JobSummary

WINDOWS = "/v1/jobs/{job}/windows"
"""Where windows are posted."""


def agent_routes(services: Services) -> APIRouter:
    """The routes, bound to one controller."""
    router = APIRouter(prefix="/v1", tags=["agents"])
    store, settings = services.store, services.settings

    @router.post(
        "/jobs",
        response_model=JobAnswer,
        responses=TAKING_BODIES,
        openapi_extra=takes(JobSpec, examples.SPEC),
        summary="Register or resume a job",
    )
    async def register(request: Request) -> Response:
        """Answers with the decision to begin with and the first window that the controller lacks.

        The same start of the trainer (`incarnation`) may register again. A new one takes the job over when the
        registered one has ended or been silent for 2.5 of its windows (2 to 30 s); until then it is answered 409
        with reason `job_is_live`. Reports of a start that was replaced are answered 409, reason `superseded`.
        """
        spec = await read_record(request, JobSpec, settings)
        return json_answer(await store.register(spec))

    @router.post(
        "/jobs/{job}/windows",
        response_model=WindowAnswer,
        responses=TAKING_BODIES,
        openapi_extra=takes(WindowReport, examples.WINDOW),
        summary="Report a window and get the decision in force",
    )
    async def window(job: JobName, request: Request) -> Response:
        """The window and what was decided on it are on disk before this answers. Windows are numbered without gaps;
        a later one is taken, and the gap is noted."""
        report = await read_record(request, WindowReport, settings)
        check_same_job(job, report.job)
        return json_answer(await store.get(job).window(report))

    @router.post(
        "/jobs/{job}/events",
        response_model=EventView,
        responses=TAKING_BODIES,
        openapi_extra=takes(Event, examples.EVENT),
        summary="Tell what happened besides windows",
    )
    async def event(job: JobName, request: Request) -> Response:
        """For people and the list of faults; nothing is decided by it."""
        told = await read_record(request, Event, settings)
        check_event(told)
        return json_answer(await store.get(job).event(told))

    @router.post(
        "/jobs/{job}/end",
        response_model=JobSummary,
        responses=TAKING_BODIES,
        openapi_extra=takes(End, examples.END),
        summary="Say that the trainer closed its agent",
    )
    async def end(job: JobName, request: Request) -> Response:
        """The job stays listed, and a new start of the trainer may go on with it."""
        known = store.get(job)
        await known.end(await read_record(request, End, settings))
        return json_answer(present.summary(known.live))

    return router
