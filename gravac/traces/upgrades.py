"""Upgrades of older trace lines to today's schema, one version at a time: ``UPGRADES[n]`` makes version n + 1 of n.

Traces stay readable for ever: an upgrade is never removed, and ``tests/traces/`` holds a trace of every version that
replays. An upgrade is a pure function of one decoded body. The body is unchecked: whatever the function raises becomes
an error that names the line. Digests are of the bytes as written, so upgrades do not change them.
"""

import json
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json

from gravac.protocol import SCHEMA, quantiles

Body = dict[str, Any]
Upgrade = Callable[[str, Body], Body]
_PHASES = ("data_wait", "compute", "compress", "communicate", "decompress")


def upgrade(kind: str, schema: int, raw: bytes) -> bytes:
    """Upgrade one body to today's schema.

    Args:
        kind: kind of the line.
        schema: version that the line was written in, 1 to ``SCHEMA``.
        raw: the body as JSON.

    Returns:
        The body as JSON of today's schema.

    Raises:
        ValueError: the body does not fit its version.
    """
    if all(UPGRADES[version] is None for version in range(schema, SCHEMA)):
        return raw
    body = from_json(raw, allow_inf_nan=False)
    if not isinstance(body, dict):
        raise ValueError("the body must be an object")
    for version in range(schema, SCHEMA):
        step = UPGRADES[version]
        if step is None:
            continue
        try:
            body = step(kind, body)
        except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise ValueError(
                f"does not fit schema version {version} ({type(error).__name__}: {error})"
            ) from None
    return json.dumps(body).encode()


def _add_spread(kind: str, body: Body) -> Body:
    """1 to 2: windows have quantiles of times over ranks. Version 1 listed every rank, up to 1024."""
    if kind != "window" or not body["ranks"]:
        return body
    rows = body["ranks"]
    spread = {name: quantiles([row["phases"][name] for row in rows]) for name in _PHASES}
    spread["step_seconds"] = quantiles([row["step_seconds"] for row in rows])
    return body | {"spread": spread}


UPGRADES: dict[int, Upgrade | None] = {
    1: _add_spread,
    2: None,  # version 3 added an optional list of steps, which older windows lack
    3: None,  # version 4 added codecs and window lengths of decisions, the optimizer, and sums that were not measured
    4: None,  # version 5 added the digest of the model and the sizes of codecs
}
"""The upgrade from each version; None: nothing to do. Other new fields had a default that means "unknown"."""
