"""Answers: headers of every answer, and JSON with entity tags, so that a poller that has seen it gets a 304."""

from hashlib import blake2b
from typing import Any

from fastapi import Request
from starlette.responses import Response

from gravac.protocol import Record

HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
"""Headers of every answer. A route may set another ``cache-control``."""
CACHE_CONTROL = b"cache-control"
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {
    304: {"description": "The answer with the ETag in If-None-Match is still current; no body."}
}
"""``responses`` of a route that answers with ``tagged``."""


def json_answer(record: Record) -> Response:
    """Return a record as JSON, written by pydantic (deterministic, no NaN)."""
    return Response(record.model_dump_json(), media_type="application/json")


def tagged(request: Request, record: Record, tag: str | None = None) -> Response:
    """Return the record as JSON with an ETag, or 304 when If-None-Match names it.

    ``tag``: the ETag; None: a digest of the body.
    """
    body = record.model_dump_json().encode()
    etag = f'"{tag}"' if tag else _etag(body)
    headers = {"etag": etag}
    if _lists(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def cacheable(body: bytes, media_type: str, cache_control: str, if_none_match: str | None) -> Response:
    """Return a file that browsers may cache, with its ETag, or 304 when ``if_none_match`` names it."""
    headers = {"etag": _etag(body), "cache-control": cache_control}
    if _lists(if_none_match, headers["etag"]):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def _etag(body: bytes) -> str:
    return f'"{blake2b(body, digest_size=12).hexdigest()}"'


def _lists(header: str | None, etag: str) -> bool:
    """Return whether an If-None-Match header lists ``etag``. Weak tags count, because equal tags mean equal bytes."""
    if header is None:
        return False
    listed = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in listed or etag in listed
