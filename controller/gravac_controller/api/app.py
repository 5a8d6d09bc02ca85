"""The application: routes, error answers, request counting, and the guard around them."""

import time
from collections.abc import Sequence

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gravac.version import __version__
from gravac_controller.api import openapi, problems
from gravac_controller.api.access import Access
from gravac_controller.api.guard import Guard
from gravac_controller.api.routes.agent import agent_routes
from gravac_controller.api.routes.control import control_routes
from gravac_controller.api.routes.metrics import metrics_routes
from gravac_controller.api.routes.read import read_routes
from gravac_controller.api.routes.service import mount_pages, service_routes
from gravac_controller.api.services import Services
from gravac_controller.hosts import own_name
from gravac_controller.metrics.service import ServiceMetrics

DESCRIPTION = (
    "Decides how strongly a distributed training job compresses its gradients, and explains every decision. "
    "Lists are paged by cursor: pass `next` as `after`. Unknown values are null."
)
METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
OTHER = "other"
"""Label of pages, files and unknown paths, and of unknown methods. Labels never hold what a client wrote."""


def create_app(services: Services) -> ASGIApp:
    """Return the ASGI application of one controller. Its store must be open while requests come in."""
    routers = [
        routes(services)
        for routes in (read_routes, agent_routes, control_routes, service_routes, metrics_routes)
    ]
    app = bare_app(services, routers)
    mount_pages(app)
    return guarded(app, services)


def bare_app(services: Services, routers: Sequence[APIRouter]) -> FastAPI:
    """Return an application with these routes, error answers and the OpenAPI document, but without pages."""
    app = FastAPI(
        title="gravac controller",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # FastAPI's pages load scripts from a CDN, which the policy of this server forbids
        redoc_url=None,
        redirect_slashes=False,
        responses=openapi.EVERYWHERE,
    )
    problems.install(app, routers, services.metrics.count_refused)
    openapi.install(app, Access.of(services.settings))
    for router in routers:
        app.include_router(router)
    return app


def guarded(app: ASGIApp, services: Services) -> ASGIApp:
    """Return the application with request counting, behind its guard."""
    settings = services.settings
    return Guard(
        RequestCounter(app, services.metrics),
        allowed_hosts=("localhost", "127.0.0.1", "::1", own_name(settings.host), *settings.allowed_hosts),
        access=Access.of(settings),
        reads_per_second=settings.limits.max_reads_per_second,
        changes_per_second=settings.limits.max_changes_per_second,
        count_refused=services.metrics.count_refused,
    )


class RequestCounter:
    """ASGI middleware that counts answers and their durations, by route, in ``metrics``.

    It runs inside the guard, whose refusals are counted by reason instead.
    """

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in METHODS else OTHER
                seconds = time.monotonic() - began
                self._metrics.count_request(_route(scope), method, message["status"], seconds)
            await send(message)

        await self._app(scope, receive, count)


def _route(scope: Scope) -> str:
    """Return the template of the route that the router put into the scope."""
    template = str(getattr(scope.get("route"), "path", OTHER))
    return OTHER if template.startswith("/static/") else template
