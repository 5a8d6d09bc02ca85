"""The hook in which replicas of a sharded model exchange gradients. Without an open agent it exchanges densely.

Where the model's own mesh has the replicas, PyTorch would average them before it calls the hook. So the mesh is
replaced by one without replicas while the hook is there.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives import InPlace, Transfer
from gravac.collectives.cost import ring_bytes
from gravac.memories import Memory
from gravac_agent.errors import SetupError
from gravac_agent.exchange.step import SubmittedBucket
from gravac_agent.fsdp.groups import ShardedGroup
from gravac_agent.fsdp.module_hook import ModuleHook
from gravac_agent.fsdp.replicas import ReplicatedModel


class ReplicatedHook(ModuleHook):
    """The agent's end of a model with replicas. Its hooks stay after the agent where only they average the replicas.

    Args:
        model: The model.
    """

    def __init__(self, model: ReplicatedModel) -> None:
        super().__init__(model)
        self._replicas = model
        self._partial: dict[
            str, Tensor
        ] = {}  # by parameter: gradients of backwards without an all-reduce, added up
        if not model.native:
            self.take_over()

    def take_over(self) -> None:
        """Put the agent's all-reduce into all modules."""
        for group in self._model.groups:
            group.all_reduce_hook = AgentAllReduce(self, group)
            if self._replicas.native:
                group.leave_replicas()
            group.watch()

    def release(self, leftover: Memory) -> None:
        """Exchange densely from now on. The residual is sent with the next gradients."""
        super().release(leftover)
        self._replicas.disconnect()
        for group in self._model.groups:
            self._give_back(group)

    def _give_back(self, sharded: ShardedGroup) -> None:
        """Give a module back to PyTorch if that averages replicas, unless something of it waits for an all-reduce."""
        waits = any(name in self._partial for name, _ in sharded.lengths())
        if not self._replicas.native or waits or self.leftover.open(sharded.full_bucket()).has_residual:
            return
        sharded.all_reduce_hook = None
        sharded.join_replicas()
        sharded.unwatch()

    def dense_on(self, group: dist.ProcessGroup) -> Callable[[SubmittedBucket], Transfer]:
        """Return what issues native HSDP's all-reduce on ``group``, for the exchange thread."""

        def issue(submitted: SubmittedBucket) -> Transfer:
            buffer = submitted.buffer
            work = dist.all_reduce(buffer, _operation(submitted.factor), group=group, async_op=True)
            assert work is not None
            return InPlace(work, ring_bytes(buffer.nbytes, group.size()), buffer.nbytes)

        return issue

    def reduce(self, sharded: ShardedGroup, gradient: Tensor) -> None:
        """Replace a shard's gradient by its mean over replicas, or by their sum if FSDP2 has divided already.

        After ``set_requires_all_reduce(False)`` the gradient becomes zero, and is added to that of the next backward
        with an all-reduce.

        Args:
            sharded: The module's group.
            gradient: What its reduce-scatter made, shape ``(n,)``. Overwritten.
        """
        pieces = sharded.pieces(gradient) if self._partial or not sharded.all_reduces else {}
        for name, piece in pieces.items():
            if (waiting := self._partial.pop(name, None)) is not None:
                piece += waiting
        if not sharded.all_reduces:
            self._partial |= {name: piece.clone() for name, piece in pieces.items()}
            gradient.zero_()
            return
        factor = self._replicas.factor(sharded)
        if self.handler is not None:
            # A view, so that ``SubmittedBucket.sharded`` sees that this is not all of a gradient.
            self.exchange(self.handler, sharded, gradient, gradient.view(-1), factor)
            return
        if self.leftover.nbytes():
            self.add_leftover(sharded, gradient)
        dist.all_reduce(gradient, _operation(factor), group=self._replicas.exchange_group)
        if gradient.is_cuda:  # its memory is of the reduce-scatter's stream, which may use it again at once
            gradient.record_stream(torch.cuda.current_stream(gradient.device))
        self._give_back(sharded)


class AgentAllReduce:
    """The hook that FSDP2 calls for one module after its reduce-scatter."""

    def __init__(self, gradient_hook: ReplicatedHook, sharded: ShardedGroup) -> None:
        self.gradient_hook, self._sharded = gradient_hook, sharded

    def __call__(self, gradient: Tensor) -> None:
        self.gradient_hook.reduce(self._sharded, gradient)


def attach_replicated(model: ReplicatedModel) -> ReplicatedHook:
    """Return the hook of a model with replicas, with the residual of an earlier, closed agent.

    Raises:
        SetupError: Another agent is open on the model.
    """
    found = {hook.gradient_hook for group in model.groups if (hook := group.all_reduce_hook) is not None}
    if any(gradient_hook.handler is not None for gradient_hook in found):
        raise SetupError(
            "this FSDP2 model is wrapped by another Agent already; leave that `with` block first"
        )
    gradient_hook = ReplicatedHook(model)
    for earlier in found:
        gradient_hook.leftover, gradient_hook._partial = earlier.leftover, earlier._partial
    return gradient_hook


def _operation(factor: float) -> Any:
    return dist.ReduceOp.AVG if factor == 1.0 else dist.ReduceOp.SUM
