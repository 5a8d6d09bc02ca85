"""Bodies of older trace lines, brought to today's schema a version at a time: ``STEPS[n]`` makes n + 1 of n.

Traces are read for ever: a step is never removed, and ``tests/traces/`` keeps a trace of every version that replays.
A step is a pure function of one decoded body, which nobody has checked: whatever it raises over one that is not what
its version says becomes an error that names the line. Digests are of the bytes as written, so no step touches them.
"""

import json
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json

from gravac.protocol import SCHEMA, quantiles

Body = dict[str, Any]
Step = Callable[[str, Body], Body]
_PHASES = ("data_wait", "compute", "compress", "communicate", "decompress")


def upgraded(kind: str, schema: int, raw: bytes) -> bytes:
    """A body of version ``schema`` as one of today's. Raises ValueError where it is not of its version."""
    if all(STEPS[version] is None for version in range(schema, SCHEMA)):
        return raw
    body = from_json(raw, allow_inf_nan=False)
    if not isinstance(body, dict):
        raise ValueError("the body must be an object")
    for version in range(schema, SCHEMA):
        step = STEPS[version]
        if step is None:
            continue
        try:
            body = step(kind, body)
        except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
            raise ValueError(
                f"is not as version {version} has it ({type(error).__name__}: {error})"
            ) from None
    return json.dumps(body).encode()


def spread_over_ranks(kind: str, body: Body) -> Body:
    """1 to 2: windows say how times spread over ranks. Then all rows were listed, up to 1024."""
    if kind != "window" or not body["ranks"]:
        return body
    rows = body["ranks"]
    spread = {name: quantiles([row["phases"][name] for row in rows]) for name in _PHASES}
    spread["step_seconds"] = quantiles([row["step_seconds"] for row in rows])
    return body | {"spread": spread}


STEPS: dict[int, Step | None] = {
    1: spread_over_ranks,
    2: None,  # windows may list their steps since; older ones do not
}
"""A version's step, None: nothing to do. What else was added had a default that says "not known"."""
