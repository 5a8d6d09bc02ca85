"""Policies, one per file. To add one, write its file and name its class in ``POLICIES`` (see CONTRIBUTING.md)."""

from collections.abc import Mapping
from typing import Any

from gravac.policies.auto.policy import AutoPolicy
from gravac.policies.base import ConfiguredPolicy, Plan, Policy, PolicySettings, PolicyState, Verdict
from gravac.policies.paper.policy import GravacPolicy
from gravac.policies.roundrobin import RoundRobinPolicy
from gravac.policies.static import DensePolicy, StaticPolicy
from gravac.policies.warmup import WarmupPolicy
from gravac.protocol import PolicySpec
from gravac.registry import Registry

POLICIES: Registry[ConfiguredPolicy[Any]] = Registry(
    "policy",
    (
        AutoPolicy,
        GravacPolicy,
        DensePolicy,
        StaticPolicy,
        WarmupPolicy,
        RoundRobinPolicy,
    ),
    base=ConfiguredPolicy,
    group="gravac.policies",
)


def parse(text: str, changes: Mapping[str, Any] | None = None) -> Policy:
    """Build a policy from ``name`` or ``name:setting=value,setting=value``, as ``GRAVAC_POLICY`` holds.

    Args:
        text: For example ``dense``, ``static:cf=100``, ``gravac:epsilon=0.3,ladder=geometric``. A list is written with
            slashes: ``gravac:ladder=10/40/160``.
        changes: Settings that replace those in the text.

    Raises:
        ValueError: There is no such policy, setting or value. The message names what is allowed.
    """
    return POLICIES.build(text, changes=changes)


def build(spec: PolicySpec) -> Policy:
    """Build the policy that a recorded spec describes.

    A spec has every setting. One that it lacks was added later, and has the value that means what was done before.

    Raises:
        ValueError: There is no such policy, setting or value. The message names what is allowed.
    """
    return POLICIES.find(spec.name)(**{**_before(spec.name), **spec.settings})


def aligned(brought: PolicySpec, running: PolicySpec) -> PolicySpec:
    """Return ``brought``, the spec that a trainer comes back with, with the settings that ``running`` has.

    A setting that was added later, and that only one of the two knows, stays as the running job has it. So a job
    survives an upgrade of gravac and goes on as it began.
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
    """What settings that a recorded spec may lack meant before they were added."""
    return POLICIES[name].Settings.before if name in POLICIES else {}


__all__ = [
    "POLICIES",
    "AutoPolicy",
    "ConfiguredPolicy",
    "DensePolicy",
    "GravacPolicy",
    "Plan",
    "Policy",
    "PolicySettings",
    "PolicyState",
    "RoundRobinPolicy",
    "StaticPolicy",
    "Verdict",
    "WarmupPolicy",
    "aligned",
    "build",
    "parse",
]
