"""Routes of the service itself: health, proof of the token, and the live page."""

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from gravac import proof
from gravac_controller.api.access import Access
from gravac_controller.api.requests import Challenge
from gravac_controller.api.responses import cacheable, json_answer
from gravac_controller.api.services import Services
from gravac_controller.errors import Unavailable, Unknown
from gravac_controller.page.files import Mode, page_files
from gravac_controller.views.models import Health, ProofView


def service_routes(services: Services) -> APIRouter:
    """Return the routes of one controller."""
    router = APIRouter(tags=["service"])
    access = Access.of(services.settings)

    @router.get("/healthz", response_model=Health, summary="Liveness")
    async def healthz() -> Response:
        return json_answer(Health(status="ok", instance=services.instance))

    @router.get(
        "/readyz",
        response_model=Health,
        summary="Readiness; 503 while the controller shuts down, or cannot write its journals",
    )
    async def readyz() -> Response:
        if services.streams.stopping.is_set():
            raise Unavailable("the controller is shutting down")
        await services.store.check_writable()
        return json_answer(Health(status="ok", instance=services.instance))

    @router.get(proof.PATH, response_model=ProofView, summary="Prove that this controller knows your token")
    async def prove(challenge: Challenge) -> Response:
        """A client that is about to send a token draws a challenge, sends it on the same connection, and compares the
        answer (`gravac.proof`). A program that took over the port of a controller cannot answer it."""
        return json_answer(ProofView(proofs=access.proofs(challenge)))

    return router


def mount_pages(app: FastAPI, mode: Mode = "live") -> None:
    """Add the page at ``/``, and its files under ``/static``."""
    files = page_files()

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        html = files.page(mode)
        if html is None:
            raise Unknown("the live page is not part of this installation; the API is under /v1/jobs")
        return HTMLResponse(html)

    @app.get("/static/{name:path}", include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        file = files.get(name)
        if file is None:
            raise Unknown("no such file of the live page", reason="not_found")
        return cacheable(file.body, file.media_type, file.cache_control, request.headers.get("if-none-match"))
