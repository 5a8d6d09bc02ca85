"""Policies, one per file. To add one, write its file and name its class in ``POLICIES`` (see CONTRIBUTING.md)."""

from collections.abc import Mapping
from typing import Any

from gravac.policies.auto.policy import AutoPolicy
from gravac.policies.base import ConfiguredPolicy, Plan, Policy, PolicySettings, PolicyState, Verdict
from gravac.policies.observe import ObservePolicy
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
        ObservePolicy,
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

    Raises:
        ValueError: There is no such policy, setting or value. The message names what is allowed.
    """
    return POLICIES.find(spec.name)(**spec.settings)


__all__ = [
    "POLICIES",
    "AutoPolicy",
    "ConfiguredPolicy",
    "DensePolicy",
    "GravacPolicy",
    "ObservePolicy",
    "Plan",
    "Policy",
    "PolicySettings",
    "PolicyState",
    "RoundRobinPolicy",
    "StaticPolicy",
    "Verdict",
    "WarmupPolicy",
    "build",
    "parse",
]
