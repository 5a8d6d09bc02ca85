"""The one shape of every error answer: application/problem+json (RFC 9457).

Only field names and our own words appear in it, never the request body: an echoed NaN would not be JSON, and an echoed
string of 1 MB would come back as 1 MB.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gravac.wording import printable, validator_message
from gravac_controller import errors
from gravac_controller.errors import Fault
from gravac_controller.views.models import Problem

MAX_FAULTS = 20
STATUSES: Mapping[type[errors.RequestError], int] = {
    errors.NotServed: 403,
    errors.Unknown: 404,
    errors.Conflict: 409,
    errors.Outdated: 412,
    errors.Invalid: 422,
    errors.LimitReached: 429,
    errors.Unavailable: 503,
}
"""Status of each error of the domain."""


class ApiError(Exception):
    """An error of the HTTP layer itself.

    Args:
        status: Status of the answer.
        detail: What is wrong and how to fix it, for people.
        reason: One word for programs, and a label of ``gravac_reports_rejected_total``.
        errors: The invalid fields.
        headers: Added to the answer.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        reason: str = "invalid",
        errors: tuple[Fault, ...] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.reason, self.errors = status, detail, reason, errors
        self.headers = dict(headers or {})

    @classmethod
    def of(cls, error: errors.RequestError) -> "ApiError":
        """Translate an error of the domain."""
        headers = {}
        if error.retry_after is not None:
            headers["retry-after"] = str(error.retry_after)
        if isinstance(error, errors.Outdated):
            headers["etag"] = f'"{error.tag}"'
        return cls(
            STATUSES[type(error)], error.detail, reason=error.reason, errors=error.faults, headers=headers
        )

    def response(self) -> Response:
        """Return the answer."""
        return problem_response(self.status, self.detail, self.errors, self.headers, reason=self.reason)


def problem_response(
    status: int,
    detail: str,
    errors: tuple[Fault, ...] = (),
    headers: Mapping[str, str] | None = None,
    *,
    reason: str = "invalid",
) -> Response:
    """Return the answer for an error: ``status`` and ``reason`` classify it, ``detail`` says how to fix it."""
    problem = Problem(
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        reason=reason,
        errors=errors,
    )
    return Response(
        problem.model_dump_json(),
        status_code=status,
        headers=dict(headers or {}),
        media_type="application/problem+json",
    )


def faults_of(error: ValidationError | RequestValidationError) -> tuple[Fault, ...]:
    """Return field and message of each fault, without the invalid input."""
    found: list[Any] = list(error.errors())
    return tuple(
        Fault(
            field=printable(".".join(str(part) for part in one["loc"]), 300) or "body",
            message=printable(validator_message(str(one["msg"])), 300),
        )
        for one in found[:MAX_FAULTS]
    )


def validation_error(error: ValidationError | RequestValidationError) -> ApiError:
    """Return a 422 with the first fault in ``detail`` and all of them (up to 20) in ``errors``."""
    faults = faults_of(error)
    more = f" ({len(error.errors())} faults in all)" if len(error.errors()) > 1 else ""
    return ApiError(422, f"{faults[0].field}: {faults[0].message}{more}", errors=faults)


def install(app: FastAPI, routers: Iterable[APIRouter], count: Callable[[str], None]) -> None:
    """Answer the errors of ``app``, of Starlette and of validation in the one shape.

    Args:
        app: The application.
        routers: Those of ``app``, for the Allow header.
        count: Called with the reason of each refused change.
    """
    routes = [
        (route.path_regex, set(route.methods or ()))
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute)
    ]

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError | errors.RequestError)
        if request.method not in ("GET", "HEAD"):
            count(error.reason)
        return (ApiError.of(error) if isinstance(error, errors.RequestError) else error).response()

    async def invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return validation_error(error).response()

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        details = {
            404: "no such path; the routes are listed in /openapi.json",
            405: f"this path does not take {printable(request.method, 300)}; see the Allow header",
        }
        detail = details.get(error.status_code, printable(str(error.detail), 300))
        methods = _allowed(routes, request.url.path) if error.status_code == 405 else ""
        headers = {"allow": methods} if methods else error.headers
        reasons = {404: "not_found", 405: "method_not_allowed"}
        reason = reasons.get(error.status_code, "invalid")
        return problem_response(error.status_code, detail, headers=headers, reason=reason)

    app.add_exception_handler(ApiError, refused)
    app.add_exception_handler(errors.RequestError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)


def _allowed(routes: Iterable[tuple[re.Pattern[str], set[str]]], path: str) -> str:
    """Return the methods of a path for the Allow header, "" for an unknown one.

    The framework names only those of the first route that matches the path.
    """
    methods: set[str] = set().union(*(found for regex, found in routes if regex.match(path)))
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
