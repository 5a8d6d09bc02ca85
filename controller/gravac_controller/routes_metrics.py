"""Routes for Prometheus: what to scrape, and where to find it.

Either scrape /metrics, which says everything, or have Prometheus ask /v1/sd/prometheus for targets: one for the
controller and one for each job, so that a job can be dropped, relabelled or limited like any other target.
"""

from collections.abc import Iterable

import anyio.to_thread
from fastapi import APIRouter, Request
from starlette.responses import Response

from gravac_controller import metrics
from gravac_controller.answers import json_answer
from gravac_controller.live import LiveJob
from gravac_controller.openapi import problems
from gravac_controller.parameters import JobName
from gravac_controller.services import Services
from gravac_controller.views import TargetGroup, TargetGroups

SERVICE_PATH = "/metrics/service"
_TEXT = {200: {"content": {"text/plain": {}}, "description": "Prometheus' text format."}}


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
        "/v1/jobs/{job}/metrics",
        summary="Metrics of one job",
        response_class=Response,
        responses=_TEXT | problems(404, 409),
    )
    async def scrape_job(job: JobName) -> Response:
        """Empty when nothing was heard of it for a day."""
        return await answer((store.get(job).live,), False)

    @router.get(
        "/v1/sd/prometheus",
        response_model=TargetGroups,
        summary="Targets for Prometheus' HTTP service discovery",
    )
    async def discover(request: Request) -> Response:
        """The controller, and every job that is in its metrics. Prometheus reaches them where it asked."""
        address = request.headers["host"]
        groups = [TargetGroup(targets=(address,), labels={"__metrics_path__": SERVICE_PATH})]
        for job in sorted(metrics.shown(everything(), settings), key=lambda one: one.known()[0].job):
            groups.append(_group(address, job))
        return json_answer(TargetGroups(tuple(groups)))

    return router


def _group(address: str, job: LiveJob) -> TargetGroup:
    spec, _ = job.known()
    labels = {
        "__metrics_path__": f"/v1/jobs/{spec.job}/metrics",
        "job_name": spec.job,
        "__meta_gravac_state": job.state(),
        "__meta_gravac_policy": spec.policy.name,
        "__meta_gravac_compressor": spec.compressor,
        "__meta_gravac_world_size": str(spec.world_size),
    }
    return TargetGroup(targets=(address,), labels=labels)
