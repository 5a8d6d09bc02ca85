"""Routes for Prometheus: what to scrape, and where to find it.

Either scrape /metrics, which says everything, or have Prometheus ask /v1/sd/prometheus for targets: one for the
controller and one for each job, so that a job can be dropped, relabelled or limited like any other target.
"""

from collections.abc import Iterable
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request
from pydantic import TypeAdapter
from starlette.responses import Response

from gravac_controller.api import examples
from gravac_controller.api.openapi import problems
from gravac_controller.api.parameters import JobName
from gravac_controller.api.services import Services
from gravac_controller.live.projection import LiveJob
from gravac_controller.metrics import exposition as metrics
from gravac_controller.metrics.targets import JOB_PATH, SERVICE_PATH, TargetGroup, job_target, service_target

GROUPS = TypeAdapter(list[TargetGroup])
_EXAMPLE = [
    group.model_dump(mode="json")
    for group in (service_target(examples.ADDRESS), job_target(examples.ADDRESS, examples.SPEC, "running"))
]
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {}}, "description": "Prometheus' text format."}
}


def metrics_routes(services: Services) -> APIRouter:
    """The routes, bound to one controller."""
    router = APIRouter(tags=["metrics"])
    store, settings = services.store, services.settings

    def everything() -> list[LiveJob]:
        return [job.live for job in store.jobs.values()]

    async def answer(jobs: Iterable[LiveJob], service: bool) -> Response:
        own = metrics.take_service(services) if service else None
        picture = metrics.Picture(metrics.take(jobs, settings), own)
        text = await anyio.to_thread.run_sync(metrics.render, picture)
        return Response(text, headers={"content-type": metrics.CONTENT_TYPE})

    @router.get(
        "/metrics", summary="Metrics of all jobs and the controller", response_class=Response, responses=_TEXT
    )
    async def scrape() -> Response:
        """Jobs of which nothing was heard for a day (`metrics_silent_seconds`) are left out."""
        return await answer(everything(), True)

    @router.get(
        SERVICE_PATH, summary="Metrics of the controller alone", response_class=Response, responses=_TEXT
    )
    async def scrape_service() -> Response:
        """The first target that service discovery names."""
        return await answer((), True)

    @router.get(
        JOB_PATH,
        summary="Metrics of one job",
        response_class=Response,
        responses=_TEXT | problems(404, 409),
    )
    async def scrape_job(job: JobName) -> Response:
        """Empty when nothing was heard of it for a day."""
        return await answer((store.get(job).live,), False)

    @router.get(
        "/v1/sd/prometheus",
        response_model=list[TargetGroup],
        responses={200: {"content": {"application/json": {"example": _EXAMPLE}}}},
        summary="Targets for Prometheus' HTTP service discovery",
    )
    async def discover(request: Request) -> Response:
        """The controller, and every job that is in its metrics. Prometheus reaches them where it asked."""
        address = request.headers["host"]
        shown = sorted(metrics.shown(everything(), settings), key=lambda job: job.known()[0].job)
        groups = [service_target(address)]
        groups += [job_target(address, job.known()[0], job.state()) for job in shown]
        return Response(GROUPS.dump_json(groups), media_type="application/json")

    return router
