"""Serves the live page on a trace file: read-only, on loopback, until a signal."""

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi import Path as InPath
from starlette.responses import Response
from starlette.types import ASGIApp

from gravac_controller import present
from gravac_controller.answers import tagged
from gravac_controller.app import bare_app, guarded
from gravac_controller.listen import listen, url_of
from gravac_controller.problems import ApiError
from gravac_controller.replayed import ReplayedJob
from gravac_controller.routes_read import read_routes
from gravac_controller.routes_service import mount_pages, service_routes
from gravac_controller.server import Server
from gravac_controller.services import Services
from gravac_controller.settings import ControllerSettings

HOST = "127.0.0.1"


def serve_trace(path: Path, port: int, started: Callable[[str, ReplayedJob], None]) -> None:
    """Serve the trace until SIGINT or SIGTERM; ``started`` gets the address once requests are answered.

    Raises TraceError, ListenError, OSError.
    """
    # As written here: the environment is for controllers, and might open this one to others.
    settings = ControllerSettings.model_construct(host=HOST, port=port)
    with contextlib.ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="gravac-ui-"))
        sock = held.enter_context(contextlib.closing(listen(HOST, port)))
        job = ReplayedJob(path, Path(folder), settings)
        services = Services.of(settings)
        services.store.jobs[job.name] = job
        server = Server(create_replay_app(services, job), services, lambda: started(url_of(sock, HOST), job))
        server.run(sockets=[sock])


def create_replay_app(services: Services, job: ReplayedJob) -> ASGIApp:
    """What a controller answers to those who look, and the job as of any window."""
    app = bare_app(services, [read_routes(services), _as_of_routes(job), service_routes(services)])
    mount_pages(app, mode="replay")
    return guarded(app, services)


def _as_of_routes(job: ReplayedJob) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.get("/jobs/{name}/as-of/{window}", include_in_schema=False)
    async def as_of(request: Request, name: str, window: Annotated[int, InPath(ge=-1, le=2**53)]) -> Response:
        if name != job.name:
            raise ApiError(404, f"this is the trace of {job.name!r}", reason="unknown_job")
        live = await anyio.to_thread.run_sync(job.as_of, window)
        return tagged(request, present.job_view(live))

    return router
