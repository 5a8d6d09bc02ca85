"""The source of an agent's gradients."""

from gravac_agent.exchange import hook
from gravac_agent.exchange.hook import HookState
from gravac_agent.fsdp.all_reduce import ReplicatedHook, attach_replicated
from gravac_agent.fsdp.model import DataParallel, ShardedModel
from gravac_agent.fsdp.reduce_scatter import ShardedHook, attach_sharded
from gravac_agent.fsdp.replicas import ReplicatedModel

GradientHook = HookState | ShardedHook | ReplicatedHook
"""The agent's end of a module."""


def attach(module: DataParallel) -> GradientHook:
    """Return the agent's end of a module. Raise SetupError if another agent or hook takes its gradients."""
    if isinstance(module, ReplicatedModel):
        return attach_replicated(module)
    return attach_sharded(module) if isinstance(module, ShardedModel) else hook.attach(module)


def exchange_densely(module: DataParallel) -> None:
    """Let the replicas of a sharded model exchange dense gradients, which PyTorch does not do without a hook."""
    if isinstance(module, ReplicatedModel) and not module.native:
        attach_replicated(module)
