"""Runs one controller: socket, journals, uvicorn, and an orderly shutdown."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from gravac_controller.api.access import Access
from gravac_controller.api.app import create_app
from gravac_controller.api.services import Services
from gravac_controller.hosts import is_loopback, own_name
from gravac_controller.jobs.journal import LEAST_JOURNALS, SPARE_FILES
from gravac_controller.server.collector import Collector
from gravac_controller.server.connections import bounded
from gravac_controller.server.listen import listen, local_url, url_of
from gravac_controller.settings import ControllerSettings

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SWITCH_SECONDS = 0.0005
"""Python's switch interval: how long another thread (rendering metrics, reading a trace) may delay the event loop. The
default of 5 ms, at each system call of an answer, adds up to 0.1 s for a window and to a second for a page."""

logger = logging.getLogger("gravac.controller")


class UnsafeError(Exception):
    """These settings would let anyone on the network read and report; the message says what to do."""


def run(settings: ControllerSettings, *, with_parent: bool, started: Callable[[str, Services], None]) -> None:
    """Serve until SIGINT, SIGTERM or, ``with_parent``, the end of standard input.

    Args:
        settings: How to serve.
        with_parent: Whether to stop when the parent process ends.
        started: Called once with the address, when the journals are folded and requests are answered.

    Raises:
        UnsafeError, ListenError, DataDirError: It cannot start.
    """
    if settings.token is None and not is_loopback(settings.host):
        raise UnsafeError(
            f"--host {settings.host} can be reached from other machines, so agents and readers need a "
            "token: set GRAVAC_TOKEN or give --token-file. Or stay on 127.0.0.1 and use an ssh tunnel"
        )
    _allow_files(settings.limits.max_jobs, settings.max_connections)
    sys.setswitchinterval(SWITCH_SECONDS)
    with contextlib.closing(listen(settings.host, settings.port)) as sock:
        services, collector = Services.of(settings), Collector()
        services.store.open()
        try:
            url = url_of(sock, own_name(settings.host))

            def answering() -> None:
                collector.start()
                services.store.announce(local_url(sock), services.instance)
                started(url, services)

            server = Server(create_app(services), services, answering)
            if with_parent:
                _watch_parent(server)
            server.run(sockets=[sock])
        finally:
            collector.stop()
            services.store.close()


class Server(uvicorn.Server):
    """uvicorn with a callback at startup. It ends event streams first, and returns after a signal."""

    def __init__(self, app: ASGIApp, services: Services, started: Callable[[], None]) -> None:
        settings = services.settings
        super().__init__(
            uvicorn.Config(
                app,
                http=bounded(settings.max_connections, settings.limits, Access.of(settings)),
                ws="none",
                loop="auto",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._services, self._on_started = services, started
        self._waking: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_started()
            self._waking = asyncio.create_task(self._services.store.wake_silent())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._services.streams.stop()
        if self._waking is not None:
            self._waking.cancel()
            await asyncio.wait([self._waking])  # a journal that is being read is read to its end
        await super().shutdown(sockets=sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals like uvicorn, but do not raise them again: the journals must be closed, and 0 returned."""
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def _watch_parent(server: uvicorn.Server) -> None:
    """Stop the server at the end of standard input: the parent closed it or died."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        logger.info("the parent has ended; stopping")
        server.should_exit = True

    threading.Thread(target=wait, name="gravac-parent", daemon=True).start()


def _allow_files(jobs: int, connections: int) -> None:
    """Raise the limit of open files as far as allowed: each job needs a journal, each reader a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least, wanted = (connections + SPARE_FILES + each for each in (min(jobs, LEAST_JOURNALS), jobs))
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < least:
        logger.warning(
            "this process may open %d files, and %d connections need %d: raise the limit (ulimit -n), or lower "
            "GRAVAC_CONTROLLER_MAX_CONNECTIONS",
            allowed,
            connections,
            least,
        )
