"""Routes for Prometheus: metrics and service discovery.

Either scrape /metrics, which has everything, or let Prometheus ask /v1/sd/prometheus for targets: one for the
controller and one for each job, so that a job can be dropped, relabeled or limited like any other target.
"""

from collections.abc import Iterable
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request
from pydantic import TypeAdapter
from starlette.responses import Response

from gravac_controller.api.openapi import problems
from gravac_controller.api.requests import JobName
from gravac_controller.api.services import Services
from gravac_controller.live.projection import LiveJob
from gravac_controller.metrics.exposition import (
    CONTENT_TYPE,
    JOB_PATH,
    SERVICE_PATH,
    TargetGroup,
    exposed,
    job_target,
    job_values,
    render,
    service_target,
)

GROUPS = TypeAdapter(list[TargetGroup])
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {}}, "description": "Prometheus' text format."}
}


def metrics_routes(services: Services) -> APIRouter:
    """Return the routes of one controller."""
    router = APIRouter(tags=["metrics"])
    store, settings = services.store, services.settings

    async def answer(jobs: Iterable[LiveJob], service: bool) -> Response:
        own = services.own_metrics() if service else None
        text = await anyio.to_thread.run_sync(render, job_values(jobs, settings), own)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    @router.get(
        "/metrics", summary="Metrics of all jobs and the controller", response_class=Response, responses=_TEXT
    )
    async def scrape() -> Response:
        """Jobs that have been silent for a day (`metrics_silent_seconds`) are left out."""
        return await answer(services.live_jobs(), True)

    @router.get(
        SERVICE_PATH, summary="Metrics of the controller alone", response_class=Response, responses=_TEXT
    )
    async def scrape_service() -> Response:
        """The first target of service discovery."""
        return await answer((), True)

    @router.get(
        JOB_PATH,
        summary="Metrics of one job",
        response_class=Response,
        responses=_TEXT | problems(404, 409),
    )
    async def scrape_job(job: JobName) -> Response:
        """Empty when the job has been silent for a day."""
        return await answer(((await store.awake(job)).live,), False)

    @router.get(
        "/v1/sd/prometheus",
        response_model=list[TargetGroup],
        summary="Targets for Prometheus' HTTP service discovery",
    )
    async def discover(request: Request) -> Response:
        """The controller, and every job in its metrics, at the address that Prometheus asked."""
        address = request.headers["host"]
        specs = {job.spec_and_decision()[0].job: job for job in exposed(services.live_jobs(), settings)}
        groups = [service_target(address)]
        groups += [
            job_target(address, job.spec_and_decision()[0], job.state()) for _, job in sorted(specs.items())
        ]
        return Response(GROUPS.dump_json(groups), media_type="application/json")

    return router
