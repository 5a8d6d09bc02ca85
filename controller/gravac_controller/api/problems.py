"""One shape for every error answer: application/problem+json (RFC 9457).

Nothing of the request body is echoed but field names and our own words: an echoed NaN would not be JSON, and a
1 MB string would come back as 1 MB.
"""

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gravac.wording import printable, validator_message
from gravac_controller.api.allow import Allowed
from gravac_controller.views.models import Fault, Problem

MAX_FAULTS = 20

logger = logging.getLogger("gravac.controller")


class ApiError(Exception):
    """A refusal. ``reason``: one word for programs, also the label in the rejected-reports metric; ``headers`` go on
    the answer."""

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


def problem_response(
    status: int,
    detail: str,
    errors: tuple[Fault, ...] = (),
    headers: Mapping[str, str] | None = None,
    *,
    reason: str = "invalid",
) -> Response:
    """The answer for an error: ``status`` and ``reason`` say what kind, ``detail`` what to do about it."""
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


def answer_of(error: ApiError) -> Response:
    """What is answered when a route raises this."""
    return problem_response(error.status, error.detail, error.errors, error.headers, reason=error.reason)


def faults_of(error: ValidationError | RequestValidationError) -> tuple[Fault, ...]:
    """Field and message of each thing wrong, without the input that was wrong."""
    found: list[Any] = list(error.errors())
    return tuple(
        Fault(
            field=printable(".".join(str(part) for part in one["loc"]), 300) or "body",
            message=printable(validator_message(str(one["msg"])), 300),
        )
        for one in found[:MAX_FAULTS]
    )


def validation_error(error: ValidationError | RequestValidationError) -> ApiError:
    """422, with the first fault in the sentence and all of them (up to 20) in ``errors``."""
    faults = faults_of(error)
    more = f" ({len(error.errors())} faults in all)" if len(error.errors()) > 1 else ""
    return ApiError(422, f"{faults[0].field}: {faults[0].message}{more}", errors=faults)


def install(app: FastAPI, refused: Callable[[str], None], allowed: Allowed) -> None:
    """Give ``app`` the one error shape for its own errors, Starlette's and validation's.

    ``refused`` is told the reason of each refused change; ``allowed`` knows what each path takes.
    """

    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        if request.method not in ("GET", "HEAD"):
            refused(error.reason)
        return answer_of(error)

    async def invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        refusal = validation_error(error)
        return answer_of(refusal)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        details = {
            404: "no such path; the routes are listed in /openapi.json",
            405: f"this path does not take {printable(request.method, 300)}; see the Allow header",
        }
        detail = details.get(error.status_code, printable(str(error.detail), 300))
        methods = allowed.methods(request.url.path) if error.status_code == 405 else ""
        headers = {"allow": methods} if methods else error.headers
        reasons = {404: "not_found", 405: "method_not_allowed"}
        reason = reasons.get(error.status_code, "invalid")
        return problem_response(error.status_code, detail, headers=headers, reason=reason)

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
