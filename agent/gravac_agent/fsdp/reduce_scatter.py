"""The reduce-scatter that FSDP2 calls while an agent is open. It passes gradients on and waits for the mean."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives import InPlace, ProcessGroupCommunicator, Transfer, backend_of, scatter_bytes
from gravac.memories import Memory, NoMemory
from gravac_agent.errors import SetupError
from gravac_agent.exchange.step import SubmittedBucket
from gravac_agent.fsdp.groups import ShardedGroup
from gravac_agent.fsdp.model import ShardedModel
from gravac_agent.fsdp.module_hook import ModuleHook


class ShardedHook(ModuleHook):
    """The agent's end of a sharded model: it replaces the reduce-scatter of each module.

    Args:
        model: The model.
    """

    def __init__(self, model: ShardedModel) -> None:
        super().__init__(model)
        self._plain = [_plain(group.reduce_scatter) for group in model.groups]
        self._op: Any = dist.ReduceOp.AVG

    def take_over(self) -> None:
        """Put the agent's reduce-scatter into all modules."""
        for group in self._model.groups:
            group.reduce_scatter = AgentReduceScatter(self, group, self._plain[group.number])
            group.watch()

    def release(self, leftover: Memory) -> None:
        """Give the modules back to FSDP2. A module with a residual sends it with its next gradient first."""
        super().release(leftover)
        for group in self._model.groups:
            self._give_back(group)

    def _give_back(self, sharded: ShardedGroup) -> None:
        """Give a module back, unless one of its parameters has a residual that waits for the next gradient."""
        if not self.leftover.open(sharded.full_bucket(self._model.ranks)).has_residual:
            sharded.reduce_scatter = self._plain[sharded.number]
            sharded.unwatch()

    def dense_on(self, group: dist.ProcessGroup) -> Callable[[SubmittedBucket], Transfer]:
        """Return what issues FSDP2's own reduce-scatter on ``group``, for the exchange thread."""

        device = next(self._model.parameters()).device.type
        ends = ProcessGroupCommunicator(group, device)
        multiplies = backend_of(group, device) == "nccl"

        def issue(submitted: SubmittedBucket) -> Transfer:
            # A further call of a module adds the number of groups to its bucket's number.
            plain, op = self._plain[submitted.bucket.number % len(self._model.groups)], self._op
            if (share := _multiplier(op)) is not None and not multiplies:  # only NCCL knows PREMUL_SUM
                submitted.buffer.mul_(share)
                op = dist.ReduceOp.SUM
            work = plain(submitted.out, submitted.buffer, group, op, async_op=True)
            nbytes = submitted.buffer.nbytes
            return InPlace(work, scatter_bytes(nbytes, ends.size, ends.scatters_whole), nbytes)

        return issue

    def reduce(self, sharded: ShardedGroup, out: Tensor, rows: Tensor, op: Any) -> bool:
        """Reduce a gradient with the agent. Return False if PyTorch must do it. Never raises.

        Args:
            sharded: The module's group.
            out: Receives this rank's row of the result.
            rows: The gradient, a row for each rank.
            op: FSDP2's operation.
        """
        factor = _factor(op, sharded.ranks)
        if factor is None:
            return False
        if self.handler is None:
            self.add_leftover(sharded, rows)
            self._give_back(sharded)
            return False
        self._op = op
        self.exchange(self.handler, sharded, rows, out, factor)
        return True


class AgentReduceScatter:
    """The reduce-scatter of one module. It allocates memory as the one that it replaces does."""

    def __init__(self, gradient_hook: ShardedHook, sharded: ShardedGroup, plain: Any) -> None:
        self.gradient_hook, self._sharded, self.plain = gradient_hook, sharded, plain

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        tensor: Tensor = self.plain.allocate(size, dtype=dtype, device=device)
        return tensor

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        if self.gradient_hook.reduce(self._sharded, output_tensor, input_tensor, op):
            return None
        work: dist.Work | None = self.plain(output_tensor, input_tensor, group, op, async_op)
        return work


def attach_sharded(model: ShardedModel) -> ShardedHook:
    """Return the hook of a sharded model, with the residual of an earlier, closed agent.

    Raises:
        SetupError: Another agent is open on the model.
    """
    leftover: Memory = NoMemory()
    for group in model.groups:
        comm = group.reduce_scatter
        if isinstance(comm, AgentReduceScatter):
            if comm.gradient_hook.handler is not None:
                raise SetupError(
                    "this FSDP2 model is wrapped by another Agent already; leave that `with` block first"
                )
            leftover = comm.gradient_hook.leftover
    gradient_hook = ShardedHook(model)
    gradient_hook.leftover = leftover
    return gradient_hook


def _plain(comm: Any) -> Any:
    return comm.plain if isinstance(comm, AgentReduceScatter) else comm


def _factor(op: Any, ranks: int) -> float | None:
    """Return the factor by which FSDP2's operation differs from a mean; None if the agent does not know it."""
    if op == dist.ReduceOp.AVG:
        return 1.0
    if op == dist.ReduceOp.SUM:
        return float(ranks)
    share = _multiplier(op)
    return None if share is None else ranks * share


def _multiplier(op: Any) -> float | None:
    """Return the factor with which PREMUL_SUM multiplies each rank's gradient; None for another operation."""
    factor = getattr(op, "factor", None) if op == dist.ReduceOp.PREMUL_SUM else None
    return factor if isinstance(factor, float) else None
