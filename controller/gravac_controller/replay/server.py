"""Serves the live page for a trace file: read-only, on loopback, until a signal."""

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

from gravac_controller.api.app import bare_app, guarded
from gravac_controller.api.responses import tagged
from gravac_controller.api.routes.read import read_routes
from gravac_controller.api.routes.service import mount_pages, service_routes
from gravac_controller.api.services import Services
from gravac_controller.errors import Unknown
from gravac_controller.live import job_views
from gravac_controller.replay.job import ReplayedJob
from gravac_controller.server.listen import listen, url_of
from gravac_controller.server.run import SWITCH_SECONDS, Server
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.history import Plain, plain

HOST = "127.0.0.1"
PATIENCE_SECONDS = 2.0
"""The rest of the trace is read once the first page has what it draws, or after this long: they would delay each
other."""


def serve_trace(
    path: Path,
    port: int,
    started: Callable[[str, ReplayedJob], None],
    finished: Callable[[ReplayedJob], None],
) -> None:
    """Serve the trace until SIGINT or SIGTERM.

    Args:
        path: The trace.
        port: To listen on; 0 takes a free one.
        started: Called with the address once requests are answered. Only the beginning of a long trace is read by then.
        finished: Called in another thread when the whole trace is read.

    Raises:
        TraceError, ListenError, OSError: It cannot start.
    """
    # Ignores the environment: its settings are for controllers, and might open this server to others.
    settings = ControllerSettings.model_construct(host=HOST, port=port)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gravac-ui-"))
        sock = stack.enter_context(contextlib.closing(listen(HOST, port)))
        job = ReplayedJob(path, Path(folder), settings)
        services = Services.of(settings)
        services.store.jobs[job.name] = job
        sys.setswitchinterval(SWITCH_SECONDS)
        reader = threading.Thread(target=_read_on, args=(job, finished), name="gravac-reader")

        def up() -> None:
            started(url_of(sock, HOST), job)
            reader.start()

        stack.callback(lambda: reader.join() if reader.ident else None)
        stack.callback(job.stop)
        server = Server(create_replay_app(services, job), services, up)
        server.run(sockets=[sock])


def _read_on(job: ReplayedJob, finished: Callable[[ReplayedJob], None]) -> None:
    job.shown.wait(PATIENCE_SECONDS)
    job.read_on()
    finished(job)


def create_replay_app(services: Services, job: ReplayedJob) -> ASGIApp:
    """Return an application with the reading routes of a controller, and routes for the job at any window."""
    app = bare_app(services, [read_routes(services), _trace_routes(job), service_routes(services)])
    mount_pages(app, mode="replay")
    return guarded(app, services)


def _trace_routes(job: ReplayedJob) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.get("/jobs/{name}/as-of/{window}", include_in_schema=False)
    async def as_of(request: Request, name: str, window: Annotated[int, InPath(ge=-1, le=2**53)]) -> Response:
        if name != job.name:
            raise Unknown(f"this is the trace of {job.name!r}", reason="unknown_job")
        live = await anyio.to_thread.run_sync(job.as_of, window)
        job.shown.set()
        return tagged(request, job_views.job_view(live))

    @router.get("/jobs/{name}/history", include_in_schema=False)
    async def history(name: str, known: Annotated[int, Query(ge=0, le=2**53)] = 0) -> Response:
        """How much has been read, and the history to draw when a redraw is worth it: at the end, and at twice as many
        windows as the page has (``known``)."""
        if name != job.name:
            raise Unknown(f"this is the trace of {job.name!r}", reason="unknown_job")
        return Response(await anyio.to_thread.run_sync(_history, job, known), media_type="application/json")

    return router


def _history(job: ReplayedJob, known: int) -> str:
    answer: Plain = {"windows": job.windows, "share": job.share, "done": job.done, "problem": job.problem}
    if job.done or job.windows >= 2 * known:
        windows, decisions = job.drawn()
        drawn = plain(windows, decisions, exact=True)
        answer |= {"windows": job.live.counts.windows, "history": drawn}
    return json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
