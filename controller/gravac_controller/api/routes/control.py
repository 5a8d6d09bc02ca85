"""Steering a job: pin a CF, dense, pause, resume. Off unless the controller was started with a control token."""

from typing import Annotated

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from gravac.protocol import Order
from gravac_controller.api import examples
from gravac_controller.api.access import ROLE, Role
from gravac_controller.api.answers import NOT_MODIFIED, tagged
from gravac_controller.api.bodies import read_record
from gravac_controller.api.openapi import TAKING_BODIES, problems, takes
from gravac_controller.api.parameters import JobName
from gravac_controller.api.problems import ApiError
from gravac_controller.api.services import Services
from gravac_controller.jobs import refusals
from gravac_controller.live import present
from gravac_controller.views.models import OverrideView

IfMatch = Annotated[
    str | None,
    Header(description="The ETag of this resource as last seen: the epoch.", examples=['"7"']),
]


def control_routes(services: Services) -> APIRouter:
    """The routes, bound to one controller."""
    router = APIRouter(prefix="/v1", tags=["operators"])
    store, settings = services.store, services.settings

    @router.get(
        "/jobs/{job}/override",
        response_model=OverrideView,
        responses=NOT_MODIFIED | problems(404, 409),
        summary="Who decides: the policy, or an operator's order",
    )
    async def look(request: Request, job: JobName) -> Response:
        """Its ETag is what an order must name in If-Match."""
        known = store.get(job)
        return tagged(request, present.override(known.live), known.override_tag)

    @router.put(
        "/jobs/{job}/override",
        status_code=202,
        response_model=OverrideView,
        responses=TAKING_BODIES | problems(412, 428),
        openapi_extra=takes(Order, examples.ORDER),
        summary="Order what is sent: pin a CF, dense, pause exploring, resume",
    )
    async def order(request: Request, job: JobName, if_match: IfMatch = None) -> Response:
        """The order is journaled with its actor, and obeyed by the decision on the next window, at a new epoch on all
        ranks at once. Needs the control token, and If-Match with the epoch that the operator saw."""
        _may_steer(request, settings.control_token is not None)
        seen = _seen(if_match)
        given = await read_record(request, Order, settings)
        known = store.get(job)
        await known.order(given, seen)
        answer = tagged(request, present.override(known.live), known.override_tag)
        answer.status_code = 202
        return answer

    return router


def _may_steer(request: Request, enabled: bool) -> None:
    if not enabled:
        raise refusals.steering_is_off()
    if request.scope[ROLE] < Role.OPERATOR:
        raise refusals.not_an_operator()


def _seen(if_match: str | None) -> str:
    """The tag in an If-Match header. Raises ApiError 428 when it names none: an order is given knowing what holds."""
    tag = (if_match or "").strip().removeprefix("W/").strip('"')
    if not tag or tag == "*":
        raise ApiError(
            428,
            "say which epoch this order is about: If-Match with the ETag of GET …/override (a quoted epoch)",
            reason="no_epoch",
        )
    return tag
