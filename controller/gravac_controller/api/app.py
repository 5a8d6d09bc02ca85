"""The application: routes, one error shape, and the guard around all of it."""

from collections.abc import Sequence

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from gravac import __version__
from gravac_controller.api import openapi, problems
from gravac_controller.api.allow import Allowed
from gravac_controller.api.guard import Guard
from gravac_controller.api.routes.agent import WINDOWS, agent_routes
from gravac_controller.api.routes.control import control_routes
from gravac_controller.api.routes.metrics import metrics_routes
from gravac_controller.api.routes.read import read_routes
from gravac_controller.api.routes.service import mount_pages, service_routes
from gravac_controller.api.services import Services
from gravac_controller.api.shortcut import Shortcut
from gravac_controller.hosts import own_name
from gravac_controller.metrics.traffic import Counted

DESCRIPTION = (
    "Decides how strongly a distributed training job compresses its gradients, explains each decision, and shows it. "
    "Lists page by cursor: pass `next` as `after`. Unknown values are null."
)


def create_app(services: Services) -> ASGIApp:
    """An ASGI application for one controller. Its store must be open while requests come in."""
    routers = [
        routes(services)
        for routes in (read_routes, agent_routes, control_routes, service_routes, metrics_routes)
    ]
    app = bare_app(services, routers)
    mount_pages(app)
    return guarded(Shortcut(app, routers, WINDOWS, services.refuse), services)


def bare_app(services: Services, routers: Sequence[APIRouter]) -> FastAPI:
    """These routes, the one shape of errors and the whole OpenAPI document; no pages yet."""
    app = FastAPI(
        title="gravac controller",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # FastAPI's own page loads scripts from a CDN; see docs_page
        redoc_url=None,
        redirect_slashes=False,
        responses=openapi.EVERYWHERE,
    )
    problems.install(app, services.refuse, Allowed(routers))
    openapi.install(app, services.settings.access())
    for router in routers:
        app.include_router(router)
    return app


def guarded(app: ASGIApp, services: Services) -> ASGIApp:
    """The application behind its guard."""
    settings = services.settings
    return Guard(
        Counted(app, services.traffic),
        allowed_hosts=("localhost", "127.0.0.1", "::1", own_name(settings.host), *settings.allowed_hosts),
        access=settings.access(),
        reads_per_second=settings.max_reads_per_second,
        changes_per_second=settings.max_changes_per_second,
        refused=services.refuse,
    )
