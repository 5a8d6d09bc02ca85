"""Routes of the service itself: health, documentation, the live page."""

from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.responses import FileResponse, HTMLResponse
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from gravac_controller.answers import json_answer
from gravac_controller.docs_page import STYLE, docs_page
from gravac_controller.problems import ApiError
from gravac_controller.services import Services
from gravac_controller.views import Health

STATIC = Path(__file__).parent / "static"
DOCS_STYLE = Path(__file__).parent / "docs.css"


def service_routes(services: Services) -> APIRouter:
    """The routes, bound to one controller."""
    router = APIRouter(tags=["service"])

    @router.get("/healthz", response_model=Health, summary="Is the process alive?")
    async def healthz() -> Response:
        return json_answer(Health(status="ok", instance=services.instance))

    @router.get("/readyz", response_model=Health, summary="Does it serve? Not while it shuts down.")
    async def readyz() -> Response:
        if services.streams.stopping.is_set():
            raise ApiError(503, "the controller is shutting down")
        return json_answer(Health(status="ok", instance=services.instance))

    return router


def mount_pages(app: FastAPI) -> None:
    """The live page at ``/``, its files under ``/static``, and ``/docs``."""

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> Response:
        index = STATIC / "index.html"
        if not index.is_file():
            raise ApiError(404, "the live page is not part of this installation; the API is under /v1/jobs")
        return FileResponse(index)

    @app.get(STYLE, include_in_schema=False)
    async def docs_style() -> Response:
        return FileResponse(DOCS_STYLE)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page(app.openapi()))

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
