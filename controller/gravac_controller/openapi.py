"""The OpenAPI document, with the bodies and the error answers that FastAPI cannot see.

Bodies are read raw (capped, strict), so their schemas are added here; every error is a Problem.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from gravac.protocol import End, Event, JobSpec, Record, WindowReport
from gravac_controller.views import EndView, EventDelta, JobDelta, Problem, Snapshot, WindowDelta

BODIES: tuple[type[Record], ...] = (JobSpec, WindowReport, Event, End)
MESSAGES: tuple[type[Record], ...] = (Snapshot, WindowDelta, EventDelta, EndView, JobDelta, Problem)
_REF = "#/components/schemas/{model}"


def takes(model: type[Record]) -> dict[str, Any]:
    """``openapi_extra`` of a route whose body is a ``model``."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def problem_answers() -> dict[int | str, dict[str, Any]]:
    """``responses`` of every route: what errors look like."""
    schema = {"$ref": _REF.format(model=Problem.__name__)}
    content = {"application/problem+json": {"schema": schema}}
    return {
        422: {"description": "The request is not valid; errors name the fields.", "content": content},
        "4XX": {"description": "Refused; detail says why.", "content": content},
        "5XX": {"description": "The controller cannot; detail says why.", "content": content},
    }


def install(app: FastAPI) -> None:
    """Make ``app`` answer /openapi.json with the whole document."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            _, extra = models_json_schema(
                [(model, "validation") for model in (*BODIES, *MESSAGES)], ref_template=_REF
            )
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for name, schema in extra["$defs"].items():
                schemas.setdefault(name, schema)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
