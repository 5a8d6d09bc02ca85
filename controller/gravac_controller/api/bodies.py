"""Reading request bodies: capped, JSON only, strictly validated."""

import asyncio
from typing import TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from gravac.protocol import Record
from gravac_controller.api.problems import ApiError, validation_error
from gravac_controller.settings import ControllerSettings

R = TypeVar("R", bound=Record)

DRAIN_BYTES = 64 * 1024 * 1024
DRAIN_SECONDS = 5.0


async def read_record(request: Request, model: type[R], settings: ControllerSettings) -> R:
    """The body as a ``model``. Raises ApiError: 415 not JSON, 413 too large, 408 too slow, 422 invalid."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        given = "no content type" if not kind else "another content type"
        raise ApiError(415, f"the request has {given}; send Content-Type: application/json")
    body = await _read(request, settings.max_body_bytes, settings.request_seconds)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise validation_error(error) from None


async def _read(request: Request, max_bytes: int, seconds: float) -> bytes:
    """All of the body. The cap holds for chunked bodies too, and is applied before reading where it can be."""
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
        raise ApiError(400, "the client went away before the body was complete") from None
    if len(body) > max_bytes:
        await _drain(request)
        raise too_large
    return bytes(body)


async def _drain(request: Request) -> None:
    """Throw away the rest, within bounds: closing early would reset the connection before the client reads 413."""
    if request.headers.get("expect", "").lower() == "100-continue":
        return  # the client waits for our word before sending anything
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
