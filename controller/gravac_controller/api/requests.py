"""What routes take: parameters of the path, query and headers, and request bodies.

Bodies are bounded in size and time, JSON only, and strictly validated.
"""

import asyncio
from typing import Annotated, TypeVar

from fastapi import Header, Path, Query, Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from gravac import proof
from gravac.protocol import Name, Phase, Record, Rule
from gravac_controller.api.problems import ApiError, validation_error
from gravac_controller.jobs.pages import CURSOR_PATTERN
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.models import LiveState

R = TypeVar("R", bound=Record)

DRAIN_BYTES = 64 * 1024 * 1024
DRAIN_SECONDS = 5.0
MOST = 2**53

JobName = Annotated[Name, Path(description="Name of the job.", examples=["my-job"])]
Limit = Annotated[int, Query(ge=1, le=1000, description="Items on the page at most.")]
After = Annotated[
    str | None,
    Query(
        pattern=CURSOR_PATTERN,
        description="Where the page begins: the `next` of the page before. A plain number is a window: the page begins "
        "after it.",
        examples=["120"],
    ),
]
AfterName = Annotated[
    str | None, Query(max_length=64, description="Only names after this one: the `next` of the page before.")
]
FromStep = Annotated[
    int | None, Query(ge=0, le=MOST, description="Only windows with this step or a later one.")
]
ToStep = Annotated[
    int | None, Query(ge=0, le=MOST, description="Only windows with this step or an earlier one.")
]
Epoch = Annotated[int | None, Query(ge=0, le=MOST, description="Only this decision epoch.")]
OfPhase = Annotated[Phase | None, Query(alias="phase", description="Only this phase.")]
OfRule = Annotated[Rule | None, Query(alias="rule", description="Only decisions made by this rule.")]
Changed = Annotated[
    bool | None,
    Query(description="true: only decisions that began an epoch; false: only those that confirmed one."),
]
WithRanks = Annotated[
    bool,
    Query(alias="ranks", description="false: omit the rows of the ranks, the largest part of wide jobs."),
]
Challenge = Annotated[
    str,
    Query(
        pattern=proof.CHALLENGE_PATTERN,
        description="32 random bytes as hexadecimal digits.",
        examples=["5f" * 32],
    ),
]
OfState = Annotated[LiveState | None, Query(alias="state", description="Only jobs in this state.")]
LastEventId = Annotated[
    str | None, Header(description="Id of the last message received: only later ones are sent.")
]
IfMatch = Annotated[
    str | None,
    Header(description="The last seen ETag of this resource: the epoch.", examples=['"7"']),
]


async def read_record(request: Request, model: type[R], settings: ControllerSettings) -> R:
    """Read the body as a ``model``.

    Raises:
        ApiError: 415 not JSON, 413 too large, 408 too slow, 422 invalid.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        given = "no content type" if not media_type else "another content type"
        raise ApiError(415, f"the request has {given}; send Content-Type: application/json")
    body = await _read(request, settings.limits.max_body_bytes, settings.limits.request_seconds)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise validation_error(error) from None


async def _read(request: Request, max_bytes: int, seconds: float) -> bytes:
    """Read the body. The limit also holds for chunked bodies, and is checked before reading where possible."""
    too_large = ApiError(
        413, f"the body is larger than {max_bytes} bytes; send a smaller one", reason="too_large"
    )
    announced = request.headers.get("content-length")
    if announced is not None and int(announced) > max_bytes:
        await _drain(request)
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    break
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {seconds:g} s") from None
    except ClientDisconnect:
        raise ApiError(400, "the client disconnected before the body was complete") from None
    if len(body) > max_bytes:
        await _drain(request)
        raise too_large
    return bytes(body)


async def _drain(request: Request) -> None:
    """Discard the rest, within bounds: closing early would reset the connection before the client reads the 413."""
    if request.headers.get("expect", "").lower() == "100-continue":
        return  # the client waits for our answer before it sends the body
    left = DRAIN_BYTES
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while left > 0:
                message = await request.receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                left -= len(message.get("body", b""))
    except TimeoutError:
        return
