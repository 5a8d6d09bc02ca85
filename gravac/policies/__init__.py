"""The decision rules, by name. Adding one: write its file, add its line to ``POLICIES``."""

import json
from typing import Any

from gravac.policies.base import Policy, PolicyState, Verdict
from gravac.policies.dense import DensePolicy
from gravac.policies.gravac import GravacPolicy
from gravac.policies.static import StaticPolicy
from gravac.policies.warmup import WarmupPolicy
from gravac.protocol import PolicySpec
from gravac.wording import meant

POLICIES: dict[str, type[Any]] = {
    "gravac": GravacPolicy,
    "dense": DensePolicy,
    "static": StaticPolicy,
    "warmup": WarmupPolicy,
}

__all__ = [
    "POLICIES",
    "DensePolicy",
    "GravacPolicy",
    "Policy",
    "PolicyState",
    "StaticPolicy",
    "Verdict",
    "WarmupPolicy",
    "build",
    "parse",
    "parse_settings",
]


def build(spec: PolicySpec) -> Policy:
    """The policy a spec describes. Raises ValueError naming policy, setting, value and what is allowed."""
    if spec.name not in POLICIES:
        raise ValueError(
            f"no policy named {spec.name!r}{meant(spec.name, POLICIES)}. Policies are: {', '.join(POLICIES)}."
        )
    policy: Policy = POLICIES[spec.name](**spec.settings)
    return policy


def parse(text: str) -> Policy:
    """A policy from one line, as ``GRAVAC_POLICY`` holds: ``name`` or ``name:setting=value,setting=value``.

    Examples: ``dense``, ``static:cf=100``, ``gravac:epsilon=0.3,ladder=geometric``; a list is written with
    slashes, ``gravac:ladder=10/40/160``. Raises ValueError saying what cannot be read.
    """
    name, _, rest = text.strip().partition(":")
    given = parse_settings(rest, f"policy {text!r}: ")
    if name not in POLICIES:
        raise ValueError(
            f"policy {text!r}: no policy named {name!r}{meant(name, POLICIES)}. Policies are: {', '.join(POLICIES)}."
        )
    policy: Policy = POLICIES[name](**given)
    return policy


def parse_settings(rest: str, blame: str = "") -> dict[str, Any]:
    """``setting=value,setting=value`` as ``parse`` reads it. Raises ValueError, which begins with ``blame``."""
    given: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        setting, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not setting or not value:
            raise ValueError(f"{blame}{part!r} must be written setting=value.")
        if setting in given:
            raise ValueError(f"{blame}setting {setting!r} is given twice.")
        given[setting] = (
            [_value(item) for item in value.split("/") if item] if "/" in value else _value(value)
        )
    return given


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
