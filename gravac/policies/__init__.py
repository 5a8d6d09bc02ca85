"""The decision rules, by name. Adding one: write its file, add its line to ``POLICIES``."""

import json
from collections.abc import Mapping
from typing import Any

from gravac.policies.base import Policy, PolicyState, Verdict
from gravac.policies.dense import DensePolicy
from gravac.policies.gravac.policy import GravacPolicy
from gravac.policies.settings import PolicySettings
from gravac.policies.static import StaticPolicy
from gravac.policies.warmup import WarmupPolicy
from gravac.protocol import PolicySpec
from gravac.wording import did_you_mean

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
    "PolicySettings",
    "PolicyState",
    "StaticPolicy",
    "Verdict",
    "WarmupPolicy",
    "aligned",
    "build",
    "parse",
    "parse_settings",
]


def build(spec: PolicySpec) -> Policy:
    """The policy a recorded spec describes. Raises ValueError naming policy, setting, value and what is allowed.

    A spec has every setting resolved: one that it lacks was added later, and means what was done before it.
    """
    if spec.name not in POLICIES:
        raise ValueError(
            f"no policy named {spec.name!r}{did_you_mean(spec.name, POLICIES)}. Policies are: {', '.join(POLICIES)}."
        )
    policy: Policy = POLICIES[spec.name](**{**_before(spec.name), **spec.settings})
    return policy


def aligned(brought: PolicySpec, running: PolicySpec) -> PolicySpec:
    """The spec that a trainer brings back to a job, which runs by ``running``, in that one's terms.

    A setting that was added later stays as the job has it where only one of the two knows it: so a job survives an
    upgrade and goes on as it began.
    """
    if brought.name != running.name:
        return brought
    settings = dict(brought.settings)
    for name in _before(running.name):
        if name not in running.settings:
            settings.pop(name, None)
        else:
            settings.setdefault(name, running.settings[name])
    return PolicySpec(name=brought.name, settings=settings)


def _before(name: str) -> Mapping[str, Any]:
    """What the settings that a recorded spec may lack meant before they were added."""
    settings: type[PolicySettings] = getattr(POLICIES.get(name), "Settings", PolicySettings)
    return settings.before


def parse(text: str, changes: Mapping[str, Any] | None = None) -> Policy:
    """A policy from one line, as ``GRAVAC_POLICY`` holds: ``name`` or ``name:setting=value,setting=value``.

    Examples: ``dense``, ``static:cf=100``, ``gravac:epsilon=0.3,ladder=geometric``; a list is written with
    slashes, ``gravac:ladder=10/40/160``. ``changes``: settings that go over those. Raises ValueError saying what cannot
    be read.
    """
    name, _, rest = text.strip().partition(":")
    given = parse_settings(rest, f"policy {text!r}: ")
    if name not in POLICIES:
        raise ValueError(
            f"policy {text!r}: no policy named {name!r}{did_you_mean(name, POLICIES)}. Policies "
            f"are: {', '.join(POLICIES)}."
        )
    policy: Policy = POLICIES[name](**{**given, **(changes or {})})
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
