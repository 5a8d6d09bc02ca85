"""Routes of the service itself: health, documentation, the live page."""

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse
from starlette.responses import Response

from gravac import proof
from gravac_controller.api.answers import json_answer
from gravac_controller.api.parameters import Challenge
from gravac_controller.api.problems import ApiError
from gravac_controller.api.services import Services
from gravac_controller.page.docs_page import STYLE, docs_page
from gravac_controller.page.files import STATIC, Mode, shipped
from gravac_controller.views.models import Health, ProofView

DOCS_STYLE = STATIC.parent / "docs.css"


def service_routes(services: Services) -> APIRouter:
    """The routes, bound to one controller."""
    router = APIRouter(tags=["service"])
    access = services.settings.access()

    @router.get("/healthz", response_model=Health, summary="Is the process alive?")
    async def healthz() -> Response:
        return json_answer(Health(status="ok", instance=services.instance))

    @router.get("/readyz", response_model=Health, summary="Does it serve? Not while it shuts down.")
    async def readyz() -> Response:
        if services.streams.stopping.is_set():
            raise ApiError(503, "the controller is shutting down")
        return json_answer(Health(status="ok", instance=services.instance))

    @router.get(proof.PATH, response_model=ProofView, summary="Prove that this controller knows your token")
    async def prove(challenge: Challenge) -> Response:
        """For those who are about to send a token: draw a challenge, ask here on the connection on which you will
        send it, and compare (`gravac.proof`). A program that took the port of a controller cannot answer."""
        return json_answer(ProofView(proofs=access.proofs(challenge)))

    return router


def mount_pages(app: FastAPI, mode: Mode = "live") -> None:
    """The page at ``/``, its files under ``/static``, and ``/docs``."""

    files = shipped()

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return files.page(mode)

    @app.get("/static/{name:path}", include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        return files.file(name, request.headers.get("if-none-match"))

    @app.get(STYLE, include_in_schema=False)
    async def docs_style() -> Response:
        return FileResponse(DOCS_STYLE)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page(app.openapi()))
