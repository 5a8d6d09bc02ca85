"""JSON answers. What is read carries an entity tag, so that a poller who has seen it gets 304 and no body."""

from hashlib import blake2b
from typing import Any

from fastapi import Request
from starlette.responses import Response

from gravac.protocol import Record

NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "As in the answer whose ETag came in If-None-Match; without a body."}
}
"""``responses`` of a route that answers with ``tagged``."""


def json_answer(record: Record) -> Response:
    """A record as JSON, written by pydantic (deterministic, no NaN)."""
    return Response(record.model_dump_json(), media_type="application/json")


def tagged(request: Request, record: Record, tag: str | None = None) -> Response:
    """The record as JSON with its ETag, or 304 when If-None-Match names it. ``tag``: digest of the bytes if null."""
    body = record.model_dump_json().encode()
    etag = f'"{tag}"' if tag else _etag(body)
    headers = {"etag": etag}
    if names(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def kept_answer(body: bytes, kind: str, keeping: str, known: str | None) -> Response:
    """A file that browsers may keep as ``keeping`` says, with its ETag, or 304 when ``known``, their tags, name it."""
    headers = {"etag": _etag(body), "cache-control": keeping}
    if names(known, headers["etag"]):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=kind, headers=headers)


def _etag(body: bytes) -> str:
    return f'"{blake2b(body, digest_size=12).hexdigest()}"'


def names(header: str | None, etag: str) -> bool:
    """Whether an If-None-Match or If-Match header lists ``etag``. Weak tags count: our bytes are what we compare."""
    if header is None:
        return False
    listed = [one.strip().removeprefix("W/") for one in header.split(",")]
    return "*" in listed or etag in listed
