"""gravac: adaptive gradient compression for PyTorch distributed training.

``import gravac`` is the whole public interface: what ``__all__`` lists is supported, the rest may change. Names are
imported at their first use, so that ``import gravac`` is quick and loads neither torch nor the controller.

    with gravac.Agent(ddp_model, optimizer) as agent:
        ...
"""

import importlib

from gravac.version import __version__

__all__ = [  # noqa: RUF022 (grouped by use)
    # train
    "Agent",
    "AgentSettings",
    "AgentState",
    "Link",
    "LoadPlanner",
    "hook",
    "integrations",
    "observe",
    "optim",
    # errors of the agent
    "AgentError",
    "AgreementError",
    "ClosedError",
    "PeerError",
    "SetupError",
    # ask a controller
    "Client",
    "ControllerError",
    "NoController",
    "NotAController",
    "Refused",
    # traces
    "TraceError",
    "check",
    "read_trace",
    "redecide",
    "replay",
    "testing",
    "predict",
    # extend
    "Aggregator",
    "Bucket",
    "Collective",
    "Compressor",
    "ConfiguredPolicy",
    "Key",
    "Memory",
    "Payload",
    "Policy",
    "PolicySettings",
    "PolicyState",
    "Traits",
    "Verdict",
    # records
    "Decision",
    "WindowReport",
    "protocol",
    # registries
    "aggregators",
    "collectives",
    "compressors",
    "memories",
    "policies",
    # version
    "__version__",
]

_MODULES = {
    "aggregators",
    "collectives",
    "compressors",
    "memories",
    "optim",
    "policies",
    "protocol",
    "testing",
    "predict",
}
_HOMES = {
    "Agent": "gravac_agent",
    "AgentError": "gravac_agent",
    "AgentSettings": "gravac_agent",
    "AgentState": "gravac_agent",
    "Aggregator": "gravac.aggregators",
    "AgreementError": "gravac_agent",
    "Bucket": "gravac.memories",
    "Client": "gravac_controller.client",
    "ClosedError": "gravac_agent",
    "Collective": "gravac.collectives",
    "Compressor": "gravac.compressors",
    "ConfiguredPolicy": "gravac.policies",
    "ControllerError": "gravac_controller.client",
    "Decision": "gravac.protocol",
    "Key": "gravac.compressors",
    "Link": "gravac_agent",
    "LoadPlanner": "gravac_agent.state.dcp",
    "Memory": "gravac.memories",
    "NoController": "gravac_controller.client",
    "NotAController": "gravac_controller.client",
    "Payload": "gravac.compressors",
    "PeerError": "gravac_agent",
    "Policy": "gravac.policies",
    "PolicySettings": "gravac.policies",
    "PolicyState": "gravac.policies",
    "Refused": "gravac_controller.client",
    "SetupError": "gravac_agent",
    "TraceError": "gravac.traces",
    "Traits": "gravac.compressors",
    "Verdict": "gravac.policies",
    "WindowReport": "gravac.protocol",
    "hook": "gravac_agent.integrations.comm_hook",
    "integrations": "gravac_agent",
    "observe": "gravac_observe.record",
    "check": "gravac.replays.replay",
    "read_trace": "gravac.traces",
    "redecide": "gravac.replays.redecide",
    "replay": "gravac.replays.replay",
}
"""Where each name is defined. The packages above this one are imported only when a name of theirs is used."""


def __getattr__(name: str) -> object:
    """Import a public name at its first use (PEP 562)."""
    if name in _MODULES:
        return importlib.import_module(f"gravac.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'gravac' has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
