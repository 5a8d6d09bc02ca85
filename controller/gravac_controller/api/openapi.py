"""The OpenAPI document, with the bodies and error answers that FastAPI does not know.

Routes read bodies themselves (bounded, strict), so their schemas are added here. Every error is a Problem.
"""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from gravac.protocol import End, Event, JobSpec, Order, Record, WindowReport
from gravac_controller.api.access import OPEN_PATHS, Access
from gravac_controller.views.models import EndView, EventDelta, JobDelta, Problem, Snapshot, WindowDelta

BODIES: tuple[type[Record], ...] = (JobSpec, WindowReport, Event, End, Order)
MESSAGES: tuple[type[Record], ...] = (Snapshot, WindowDelta, EventDelta, EndView, JobDelta, Problem)
TAGS = [
    {"name": "jobs", "description": "Reading. These routes change nothing."},
    {
        "name": "agents",
        "description": "Requests of the agent in the trainer. Each is idempotent: it may be repeated until it is "
        "answered.",
    },
    {
        "name": "operators",
        "description": "Steering. Off unless the controller was started with a control token.",
    },
    {"name": "metrics", "description": "Scraping and service discovery for Prometheus."},
    {"name": "service", "description": "The controller itself."},
]
MEANING: Mapping[int, str] = {
    400: "The Host is not served here, or the request is not HTTP.",
    401: "The token is missing or wrong.",
    403: "Refused with any token: sent by a page of another site, or not offered by this controller.",
    404: "No such job.",
    408: "The body did not arrive in time.",
    409: "It contradicts the state of the job; detail says how.",
    412: "The epoch has changed since it was read; the ETag is the current one.",
    413: "The body is too large.",
    415: "The body is not declared as application/json.",
    422: "Not valid; errors name the fields.",
    428: "If-Match is missing.",
    429: "Too many requests (see Retry-After), or too many jobs.",
    431: "The head of the request is too long.",
    500: "An internal error of the controller; its log has the details.",
    503: "Not possible at the moment; try again later.",
}
_REF = "#/components/schemas/{model}"


def takes(model: type[Record]) -> dict[str, Any]:
    """Return ``openapi_extra`` of a route whose body is a ``model``."""
    content = {"schema": {"$ref": _REF.format(model=model.__name__)}}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return ``responses`` for these errors: the meaning of each, and their common shape."""
    schema = {"$ref": _REF.format(model=Problem.__name__)}
    return {
        status: {
            "description": MEANING[status],
            "content": {"application/problem+json": {"schema": schema}},
        }
        for status in statuses
    }


EVERYWHERE = problems(400, 401, 403, 422, 429, 431, 500, 503)
"""Errors of every route."""
TAKING_BODIES = problems(404, 408, 409, 413, 415)
"""Errors of routes that take a body."""


def install(app: FastAPI, access: Access) -> None:
    """Make ``app`` answer /openapi.json with the whole document. ``access``: which routes need a token here."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                tags=TAGS,
            )
            _, extra = models_json_schema(
                [(model, "validation") for model in (*BODIES, *MESSAGES)], ref_template=_REF
            )
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for name, schema in extra["$defs"].items():
                schemas.setdefault(name, schema)
            _add_tokens(document, access)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _add_tokens(document: dict[str, Any], access: Access) -> None:
    """Add the token that each route needs on this controller."""
    document["components"]["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "The agents' token, or the operators'.",
        },
        "password": {
            "type": "http",
            "scheme": "basic",
            "description": "Any name, with either token as the password; allows reading only.",
        },
        "control": {"type": "http", "scheme": "bearer", "description": "The operators' token."},
    }
    looking: list[dict[str, list[str]]] = [] if access.open_to_look else [{"token": []}, {"password": []}]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method == "get":
                operation["security"] = [] if path in OPEN_PATHS else looking
            elif "operators" in operation["tags"]:
                operation["security"] = [{"control": []}] if access.control_token is not None else []
            else:
                operation["security"] = [{"token": []}] if access.agent_token is not None else []
