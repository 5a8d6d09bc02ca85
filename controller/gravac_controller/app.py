"""The application: routes, one error shape, and the guard around all of it."""

from fastapi import FastAPI
from starlette.types import ASGIApp

from gravac import __version__
from gravac_controller import openapi, problems
from gravac_controller.guard import Guard
from gravac_controller.hosts import own_name
from gravac_controller.routes_agent import agent_routes
from gravac_controller.routes_control import control_routes
from gravac_controller.routes_metrics import metrics_routes
from gravac_controller.routes_read import read_routes
from gravac_controller.routes_service import mount_pages, service_routes
from gravac_controller.services import Services
from gravac_controller.traffic import Counted

DESCRIPTION = (
    "Decides how strongly a distributed training job compresses its gradients, explains each decision, and shows it. "
    "Lists page by cursor: pass `next` as `after`. Unknown values are null."
)


def create_app(services: Services) -> ASGIApp:
    """An ASGI application for one controller. Its store must be open while requests come in."""
    app = bare_app(services)
    app.include_router(read_routes(services))
    app.include_router(agent_routes(services))
    app.include_router(control_routes(services))
    app.include_router(service_routes(services))
    app.include_router(metrics_routes(services))
    mount_pages(app)
    return guarded(app, services)


def bare_app(services: Services) -> FastAPI:
    """Without routes, but with the one shape of errors and the whole OpenAPI document."""
    app = FastAPI(
        title="gravac controller",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,  # FastAPI's own page loads scripts from a CDN; see docs_page
        redoc_url=None,
        redirect_slashes=False,
        responses=openapi.EVERYWHERE,
    )
    problems.install(app, services.refuse)
    openapi.install(app)
    return app


def guarded(app: FastAPI, services: Services) -> ASGIApp:
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
