"""POST routes for agents. Each is idempotent: an agent repeats a request until it is answered."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from gravac.protocol import End, Event, JobAnswer, JobSpec, WindowAnswer, WindowReport
from gravac_controller import present
from gravac_controller.bodies import read_record
from gravac_controller.checks import check_same_job
from gravac_controller.openapi import takes
from gravac_controller.routes_read import JobName, json_answer
from gravac_controller.services import Services
from gravac_controller.views import EventView, JobSummary


def agent_routes(services: Services) -> APIRouter:
    """The routes, bound to one controller."""
    router = APIRouter(prefix="/v1", tags=["agents"])
    store, cap = services.store, services.settings.max_body_bytes

    @router.post(
        "/jobs", response_model=JobAnswer, openapi_extra=takes(JobSpec), summary="Register or resume a job"
    )
    async def register(request: Request) -> Response:
        spec = await read_record(request, JobSpec, cap)
        return json_answer(await store.register(spec))

    @router.post(
        "/jobs/{job}/windows",
        response_model=WindowAnswer,
        openapi_extra=takes(WindowReport),
        summary="Report a window and get the decision in force",
    )
    async def window(job: JobName, request: Request) -> Response:
        report = await read_record(request, WindowReport, cap)
        check_same_job(job, report.job)
        return json_answer(await store.get(job).window(report))

    @router.post(
        "/jobs/{job}/events",
        response_model=EventView,
        openapi_extra=takes(Event),
        summary="Tell what happened besides windows",
    )
    async def event(job: JobName, request: Request) -> Response:
        told = await read_record(request, Event, cap)
        return json_answer(await store.get(job).event(told))

    @router.post(
        "/jobs/{job}/end",
        response_model=JobSummary,
        openapi_extra=takes(End),
        summary="Say that the trainer closed its agent",
    )
    async def end(job: JobName, request: Request) -> Response:
        known = store.get(job)
        await known.end(await read_record(request, End, cap))
        return json_answer(present.summary(known.live))

    return router
