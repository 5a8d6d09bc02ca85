"""HSDP: a model sharded inside each node, whose replicas on other nodes exchange compressed gradients of their shard.

``fully_shard`` gets a mesh of nodes and ranks, or its inner dimension only and the agent the outer one. FSDP2 reduces
gradients densely inside a node, and calls the agent's hook with this rank's shard of the result. After ``replicate``
each rank is a replica, and the hook gets its whole gradient.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from gravac.memories import Bucket
from gravac_agent.errors import SetupError
from gravac_agent.exchange.agreement import OwnGroups, are_equal, gather_texts, sums
from gravac_agent.fsdp.groups import ShardedGroup
from gravac_agent.fsdp.model import ShardedModel, check_group

Replicas = DeviceMesh | dist.ProcessGroup
"""The ranks that hold the same shard, one on each node: a mesh dimension or its process group."""


class ReplicatedModel(ShardedModel):
    """The FSDP modules of a model that has replicas.

    Args:
        module: The root, on which ``fully_shard`` or ``replicate`` was called last.
        replicate: The ranks that hold the same shard as this one; None if the model's own mesh has them.

    Attributes:
        native: Whether the model's own mesh has the replicas, so that PyTorch averages them while no agent runs.

    Raises:
        SetupError: The model is sharded in a way that the agent cannot compress, or ``replicate`` does not fit it.
    """

    def __init__(self, module: nn.Module, replicate: Replicas | None = None) -> None:
        self.native = replicate is None
        self._group = None if replicate is None else _group_of(replicate)
        super().__init__(module)
        if self._group is None:
            return
        own, replicas = {dist.get_rank()}, set(dist.get_process_group_ranks(self._group))
        shards = own if self.shard_group is None else set(dist.get_process_group_ranks(self.shard_group))
        if len(replicas) == 1:
            raise SetupError(
                "replicate= has 1 rank, so there are no replicas to exchange with: leave it out to compress the "
                "reduce-scatter"
            )
        if shards & replicas != own:
            raise SetupError(
                f"replicate= has the ranks {sorted(replicas)}, the model is sharded over {sorted(shards)}: pass the "
                "mesh dimension of the replicas, such as mesh['replicate'], and mesh['shard'] to fully_shard"
            )

    def _own_group(self) -> dist.ProcessGroup:
        group = self._group or self.replica_group
        assert group is not None
        return group

    @property
    def replicas(self) -> int:
        """Replicas of the model."""
        return self.exchange_group.size()

    @property
    def shard(self) -> int:
        """Number of this rank's shard."""
        return 0 if self.shard_group is None else self.shard_group.rank()

    @property
    def exchange_scale(self) -> float:
        """Factor by which gradients are larger in the exchange than in ``parameter.grad``, by the divide factor.

        FSDP2 divides in the reduce-scatter, which comes before the exchange, or after all collectives.
        """
        sharded = self.groups[0]
        divided_later = float(self.ranks if sharded.divide_factor is None else sharded.divide_factor)
        return (divided_later if sharded.sums_only else 1.0) / self.factor(sharded)

    def factor(self, sharded: ShardedGroup) -> float:
        """Return the factor of the mean over replicas that a module wants.

        A divide factor is meant for all ranks: native HSDP divides by it once, and then sums over replicas.
        """
        return 1.0 if sharded.divide_factor is None else float(self.replicas)

    def bucket(self, sharded: ShardedGroup, numel: int, call: int) -> Bucket:
        """Describe a gradient of this rank's shard; see ``ShardedModel.bucket``."""
        return sharded.bucket(numel, call, len(self.groups))

    def pieces(self, parameter: str) -> list[str]:
        """Return the names of this rank's piece of a parameter in the error memory."""
        return self.named_calls(parameter)

    def connect(self, seconds: float, groups: OwnGroups) -> None:
        """Find the ranks of all replicas. All ranks call it.

        Args:
            seconds: Longest wait for them.
            groups: Makes a group of them.

        Raises:
            SetupError: Replicas are not sharded alike.
        """
        if self.shard_group is None:
            return
        own = dist.get_process_group_ranks(self.shard_group)
        mine = [rank in own for rank in range(dist.get_world_size())]
        # Sizes are equal where R times the sum of their squares is the square of their sum (Cauchy-Schwarz).
        *holders, squares = sums([*mine, len(own) ** 2], self.exchange_group, seconds)
        members = [rank for rank, holding in enumerate(holders) if holding]
        if len(members) != self.ranks * self.replicas or squares * self.replicas != len(members) ** 2:
            rows = "; ".join(gather_texts(str(own), self.exchange_group))
            raise SetupError(
                f"the replicas are sharded over the ranks {rows}: shard each over as many ranks of its own"
            )
        if len(members) == dist.get_world_size():
            world = dist.group.WORLD
            assert world is not None
            self.process_group = world
            return
        groups.align(self.exchange_group)
        groups.align(self.shard_group)  # after both, all ranks of all replicas are in as many groups
        self.process_group = groups.new(members, seconds, "gloo")

    def disconnect(self) -> None:
        """Forget the group of all replicas, because the agent destroys it."""
        self.process_group = self.exchange_group

    def differ(self) -> bool:
        """Return whether replicas hold different parameters. All ranks call it, after ``connect``."""
        # Those of replicas of a shard are equal to the last bit.
        parts = [_local(parameter).double() for parameter in self.parameters()]
        mine = torch.stack([part for sharded in parts for part in (sharded.sum(), sharded.square().sum())])
        alike = are_equal(f"{float(mine.sum()).hex()} {float(mine[1::2].sum()).hex()}", self.exchange_group)
        return any(sums([not alike], self.process_group))

    def _check(self, sharded: ShardedGroup) -> None:
        where = check_group(sharded)
        if sharded.all_reduce_hook is not None and not hasattr(sharded.all_reduce_hook, "gradient_hook"):
            raise SetupError(
                f"{where} has an all-reduce hook of its own: leave out set_all_reduce_hook, the Agent all-reduces over "
                "the replicas"
            )
        if sharded.has_partial_sum:
            raise SetupError(
                f"{where} holds gradients of a backward without an all-reduce, by set_requires_all_reduce(False): "
                "start the Agent after the optimizer's step"
            )


def _group_of(replicate: object) -> dist.ProcessGroup:
    if isinstance(replicate, dist.ProcessGroup):
        return replicate
    if not isinstance(replicate, DeviceMesh):
        raise SetupError(
            f"replicate={replicate!r} is neither a DeviceMesh nor a process group: pass mesh['replicate'], the "
            "dimension of the replicas"
        )
    if replicate.ndim != 1:
        raise SetupError(
            f"replicate= is a mesh of {replicate.ndim} dimensions, {replicate.mesh_dim_names}: pass the one of the "
            "replicas, such as mesh['replicate']"
        )
    return replicate.get_group()


def _local(parameter: torch.Tensor) -> torch.Tensor:
    whole: torch.Tensor = parameter.detach()
    return whole.to_local() if hasattr(whole, "to_local") else whole
