"""A model after ``fully_shard`` or ``replicate`` as the agent sees it, and clear errors for what it cannot compress."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from gravac.memories import Bucket
from gravac_agent.errors import SetupError
from gravac_agent.fsdp.groups import CALL, ShardedGroup, piece_name


def is_sharded(module: nn.Module) -> bool:
    """Return whether ``fully_shard`` or ``replicate``, which uses the same code, was called on this module."""
    return isinstance(module, FSDPModule)


class ShardedModel:
    """The FSDP modules of a model, with the few attributes of DDP that the agent uses.

    Args:
        module: The root, on which ``fully_shard`` or ``replicate`` was called last.

    Attributes:
        module: The root.
        groups: The parameters that are reduced together, in the order of ``module.modules()``.
        shard_group: The ranks that the parameters are sharded over; None after ``replicate``.
        replica_group: The ranks that hold the same shard, by the model's own mesh; None if it has no such dimension.
        process_group: The ranks that follow one plan.
        exchange_group: The ranks that exchange compressed gradients.

    Raises:
        SetupError: The model is sharded in a way that the agent cannot compress.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        names = {child: name for name, child in module.named_modules(remove_duplicate=True)}
        self.groups = tuple(
            ShardedGroup.of(number, label, group, names)
            for number, (label, group) in enumerate(_groups(module))
        )
        if not self.groups:
            raise SetupError(
                f"{type(module).__name__}: {wrapper(module)} was called, but the model has no parameters to shard"
            )
        for sharded in self.groups:
            self._check(sharded)
        meshes = {(group.shard_group, group.replica_group) for group in self.groups}
        if len(meshes) > 1:
            raise SetupError(
                f"the model's FSDP modules are on {len(meshes)} meshes of different process groups: call "
                f"{wrapper(module)} with the same mesh on all of them"
            )
        self.shard_group, self.replica_group = meshes.pop()
        self.process_group = self.exchange_group = self._own_group()

    def _own_group(self) -> dist.ProcessGroup:
        """Return the ranks that exchange gradients."""
        assert self.shard_group is not None
        return self.shard_group

    @property
    def ranks(self) -> int:
        """Ranks that the parameters are sharded over."""
        return self.groups[0].ranks

    @property
    def exchanges_rows(self) -> bool:
        """Whether ranks exchange the gradients of all shards, a row for each rank, and not only of their own shard."""
        return self.shard is None

    @property
    def shard(self) -> int | None:
        """Number of the only shard that this rank keeps a residual of; None if it keeps one of all shards."""
        return None

    @property
    def exchange_scale(self) -> float:
        """Factor by which gradients are larger in the exchange than in ``parameter.grad``, by the divide factor."""
        factor = self.groups[0].divide_factor
        return 1.0 if factor is None else factor / self.ranks

    def bucket(self, sharded: ShardedGroup, numel: int, call: int) -> Bucket:
        """Describe a gradient that ranks exchange.

        Args:
            sharded: Its group.
            numel: Its elements.
            call: How often the group was reduced before in this backward. Each time has a residual of its own.
        """
        return sharded.bucket(numel, call, len(self.groups), self.ranks)

    @property
    def by_rows(self) -> bool:
        """Whether all parameters are sharded along their first dimension."""
        return all(group.by_rows for group in self.groups)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the sharded parameters, which the optimizer steps, even while the module holds gathered ones."""
        for group in self.groups:
            yield from group.named_parameters()

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the sharded parameters."""
        for _, parameter in self.named_parameters():
            yield parameter

    def gradients(self) -> Iterator[torch.Tensor]:
        """Yield this rank's part of each gradient that there is."""
        for parameter in self.parameters():
            if (gradient := parameter.grad) is not None:
                yield getattr(gradient, "_local_tensor", gradient)  # ``to_local`` takes a GPU's host too long

    def pieces(self, parameter: str) -> list[str]:
        """Return the names of a parameter's pieces in the error memory."""
        return [piece_name(name, rank) for name in self.named_calls(parameter) for rank in range(self.ranks)]

    def named_calls(self, parameter: str) -> list[str]:
        """Return the names of a parameter in the reductions of one backward."""
        calls = max(group.calls for group in self.groups)
        return [parameter, *(f"{parameter}{CALL}{call}" for call in range(1, calls))]

    def _check(self, sharded: ShardedGroup) -> None:
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
            DefaultReduceScatter,
            ProcessGroupAllocReduceScatter,
        )

        where = check_group(sharded)
        if sharded.all_reduce_hook is not None:
            raise SetupError(
                f"{where} has an all-reduce hook, so the model has replicas: leave out set_all_reduce_hook, and write "
                "Agent(model, optimizer, replicate=mesh['replicate']), which all-reduces over them"
            )
        if sharded.ranks == 1:
            raise SetupError(
                f"{where} is sharded over 1 rank, where PyTorch calls no reduce-scatter: there is nothing to compress. "
                "Pass enabled=False"
            )
        comm = sharded.reduce_scatter
        known = type(comm) in (DefaultReduceScatter, ProcessGroupAllocReduceScatter)
        if not known and not hasattr(comm, "gradient_hook"):
            raise SetupError(
                f"{where} has a reduce-scatter of its own, {type(comm).__name__}: leave out set_custom_reduce_scatter "
                "and set_symm_mem_for_comm"
            )


DataParallel = DistributedDataParallel | ShardedModel
"""What an agent is attached to."""


def named_parameters(module: DataParallel) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the model's parameters with their names in it."""
    return (module if isinstance(module, ShardedModel) else module.module).named_parameters()


def wrapper(module: nn.Module) -> str:
    """Return the name of the function that wrapped a module for which ``is_sharded``."""
    return (
        "replicate"
        if any(kind.__name__ == "ReplicateModule" for kind in type(module).__mro__)
        else "fully_shard"
    )


def has_replicas(module: nn.Module) -> bool:
    """Return whether the mesh of a model for which ``is_sharded`` has replicas, which PyTorch averages by itself."""
    for number, (label, group) in enumerate(_groups(module)):
        replicas = ShardedGroup(number, label, group, ()).replica_group
        return replicas is not None and replicas.size() > 1
    return False


def _groups(module: nn.Module) -> Iterator[tuple[str, object]]:
    seen: set[int] = set()
    for label, child in module.named_modules():
        if not is_sharded(child):
            continue
        state = child._get_fsdp_state()
        if hasattr(state, "_fsdp_param_groups"):
            groups = state._fsdp_param_groups
        else:  # torch 2.11, in which a module has one group at most
            groups = [one for one in (state._fsdp_param_group,) if one is not None]
        if len(groups) > 1:
            raise SetupError(
                f"FSDP module {label or 'model'!r} shards its parameters over {len(groups)} meshes, where PyTorch "
                "allows no custom reduce-scatter: let shard_placement_fn return one mesh for a module"
            )
        for group in groups:
            # fully_shard([a, b]) gives several modules the same group.
            if id(group) not in seen and group.fsdp_params:
                seen.add(id(group))
                yield label, group


def check_group(sharded: ShardedGroup) -> str:
    """Return a group's name for messages. Raise SetupError if the agent cannot compress its formats."""
    where = f"FSDP module {sharded.label or 'model'!r}"
    if not hasattr(FSDPModule, "set_custom_reduce_scatter"):
        raise SetupError(
            f"torch {torch.__version__} allows no custom reduce-scatter in FSDP2: update torch, or pass enabled=False"
        )
    group = sharded.group
    at = {param.sharded_param.device.type for param in group.fsdp_params}
    if group.device.type != "cpu" and "cpu" in at:
        raise SetupError(
            f"{where} keeps its parameters on the CPU and makes gradients on {group.device.type} (CPUOffloadPolicy): "
            "leave offload_policy out, or pass enabled=False"
        )
    policy = group.mp_policy
    dtypes = {param.sharded_param.dtype for param in group.fsdp_params}
    if torch.float16 in {policy.reduce_dtype or policy.param_dtype or dtype for dtype in dtypes}:
        raise SetupError(
            f"{where} reduces its gradients in float16, which gradient + residual may leave: pass "
            "mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32) where you wrap the model"
        )
    return where
