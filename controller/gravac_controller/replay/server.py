"""Serves the live page on a trace file: read-only, on loopback, until a signal."""

import contextlib
import json
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from fastapi import Path as InPath
from starlette.responses import Response
from starlette.types import ASGIApp

from gravac_controller.api.answers import tagged
from gravac_controller.api.app import bare_app, guarded
from gravac_controller.api.problems import ApiError
from gravac_controller.api.routes.read import read_routes
from gravac_controller.api.routes.service import mount_pages, service_routes
from gravac_controller.api.services import Services
from gravac_controller.live import present
from gravac_controller.replay.replayed import ReplayedJob
from gravac_controller.server.listen import listen, url_of
from gravac_controller.server.run import SWITCH_SECONDS, Server
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.history import Plain, plain

HOST = "127.0.0.1"
PATIENCE_SECONDS = 2.0
"""Reading on begins when the first page has what it draws, or after so long: the two would only delay each other."""


def serve_trace(
    path: Path,
    port: int,
    started: Callable[[str, ReplayedJob], None],
    finished: Callable[[ReplayedJob], None],
) -> None:
    """Serve the trace until SIGINT or SIGTERM; ``started`` gets the address once requests are answered.

    Of a long trace only the beginning is read by then; ``finished`` is called, in another thread, when all of it is.
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
        sys.setswitchinterval(SWITCH_SECONDS)
        reader = threading.Thread(target=_read_on, args=(job, finished), name="gravac-reader")

        def up() -> None:
            started(url_of(sock, HOST), job)
            reader.start()

        held.callback(lambda: reader.join() if reader.ident else None)
        held.callback(job.stop)
        server = Server(create_replay_app(services, job), services, up)
        server.run(sockets=[sock])


def _read_on(job: ReplayedJob, finished: Callable[[ReplayedJob], None]) -> None:
    job.shown.wait(PATIENCE_SECONDS)
    job.read_on()
    finished(job)


def create_replay_app(services: Services, job: ReplayedJob) -> ASGIApp:
    """What a controller answers to those who look, and the job as of any window."""
    app = bare_app(services, [read_routes(services), _trace_routes(job), service_routes(services)])
    mount_pages(app, mode="replay")
    return guarded(app, services)


def _trace_routes(job: ReplayedJob) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.get("/jobs/{name}/as-of/{window}", include_in_schema=False)
    async def as_of(request: Request, name: str, window: Annotated[int, InPath(ge=-1, le=2**53)]) -> Response:
        if name != job.name:
            raise ApiError(404, f"this is the trace of {job.name!r}", reason="unknown_job")
        live = await anyio.to_thread.run_sync(job.as_of, window)
        job.shown.set()
        return tagged(request, present.job_view(live))

    @router.get("/jobs/{name}/history", include_in_schema=False)
    async def history(name: str, known: Annotated[int, Query(ge=0, le=2**53)] = 0) -> Response:
        """How much has been read, and what there is to draw of it, when that is worth drawing anew: at the end, and
        at twice as many windows as the page has (``known``)."""
        if name != job.name:
            raise ApiError(404, f"this is the trace of {job.name!r}", reason="unknown_job")
        return Response(await anyio.to_thread.run_sync(_history, job, known), media_type="application/json")

    return router


def _history(job: ReplayedJob, known: int) -> str:
    told: Plain = {"windows": job.windows, "share": job.share, "done": job.done, "problem": job.problem}
    if job.done or job.windows >= 2 * known:
        windows, decisions = job.told()
        drawn = plain(windows, decisions, exact=True)
        told |= {"windows": job.live.totals.windows, "history": drawn}
    return json.dumps(told, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
