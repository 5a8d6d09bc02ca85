"""Steering a job: pin a CF, dense, pause, resume. Off unless the controller was started with a control token."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from gravac.protocol import Order
from gravac_controller.api.access import ROLE, Role, not_an_operator, steering_is_off
from gravac_controller.api.openapi import TAKING_BODIES, problems, takes
from gravac_controller.api.problems import ApiError
from gravac_controller.api.requests import IfMatch, JobName, read_record
from gravac_controller.api.responses import NOT_MODIFIED, tagged
from gravac_controller.api.services import Services
from gravac_controller.live import job_views
from gravac_controller.views.models import OverrideView


def control_routes(services: Services) -> APIRouter:
    """Return the routes of one controller."""
    router = APIRouter(prefix="/v1", tags=["operators"])
    store, settings = services.store, services.settings

    @router.get(
        "/jobs/{job}/override",
        response_model=OverrideView,
        responses=NOT_MODIFIED | problems(404, 409),
        summary="Who decides: the policy, or an operator's order",
    )
    async def read(request: Request, job: JobName) -> Response:
        """The ETag goes into If-Match of an order."""
        known = await store.awake(job)
        return tagged(request, job_views.override(known.live), known.override_tag)

    @router.put(
        "/jobs/{job}/override",
        status_code=202,
        response_model=OverrideView,
        responses=TAKING_BODIES | problems(412, 428),
        openapi_extra=takes(Order),
        summary="Give an order: pin a CF, go dense, pause exploring, resume",
    )
    async def order(request: Request, job: JobName, if_match: IfMatch = None) -> Response:
        """The order is journaled with its actor. The decision on the next window applies it, at a new epoch on all
        ranks at once. Needs the control token, and If-Match with the epoch that the operator saw."""
        _may_steer(request, settings.control_token is not None)
        seen = _seen(if_match)
        given = await read_record(request, Order, settings)
        known = await store.awake(job)
        await known.order(given, seen)
        answer = tagged(request, job_views.override(known.live), known.override_tag)
        answer.status_code = 202
        return answer

    return router


def _may_steer(request: Request, enabled: bool) -> None:
    if not enabled:
        raise steering_is_off()
    if request.scope[ROLE] < Role.OPERATOR:
        raise not_an_operator()


def _seen(if_match: str | None) -> str:
    """Return the tag in If-Match. Raises ApiError 428 without one: an order must refer to the state it changes."""
    tag = (if_match or "").strip().removeprefix("W/").strip('"')
    if not tag or tag == "*":
        raise ApiError(
            428,
            "name the epoch that this order is about: If-Match with the ETag of GET …/override (a quoted epoch)",
            reason="no_epoch",
        )
    return tag
