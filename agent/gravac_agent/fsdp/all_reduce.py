"""The hook in which replicas of a sharded model exchange gradients. Without an open agent it exchanges densely."""

from collections.abc import Callable
from typing import Any

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


class ReplicatedSlot(ModuleHook):
    """The agent's end of a model with sharded replicas. Its hooks stay after the agent, as only they average replicas.

    Args:
        model: The model.
    """

    def __init__(self, model: ReplicatedModel) -> None:
        super().__init__(model)
        self._replicas = model
        self._partial: dict[
            str, Tensor
        ] = {}  # by parameter: gradients of backwards without an all-reduce, added up
        for group in model.groups:
            group.all_reduce_hook = AgentAllReduce(self, group)
            group.watch()

    def take_over(self) -> None:
        """Do nothing: the hooks are there already."""

    def release(self, leftover: Memory) -> None:
        """Exchange densely from now on. The residual is sent with the next gradients."""
        super().release(leftover)
        self._replicas.disconnect()

    def dense_on(self, group: dist.ProcessGroup) -> Callable[[SubmittedBucket], Transfer]:
        """Return what issues native HSDP's all-reduce on ``group``, for the exchange thread."""

        def issue(submitted: SubmittedBucket) -> Transfer:
            buffer = submitted.buffer
            work = dist.all_reduce(buffer, _operation(submitted.factor), group=group, async_op=True)
            assert work is not None
            return InPlace(work, ring_bytes(buffer.nbytes, group.size()), buffer.nbytes)

        return issue

    def reduce(self, one: ShardedGroup, gradient: Tensor) -> None:
        """Replace a shard's gradient by its mean over replicas, or by their sum if FSDP2 has divided already.

        After ``set_requires_all_reduce(False)`` the gradient becomes zero, and is added to that of the next backward
        with an all-reduce.

        Args:
            one: The module's group.
            gradient: What its reduce-scatter made, shape ``(n,)``. Overwritten.
        """
        pieces = one.pieces(gradient) if self._partial or not one.all_reduces else {}
        for name, piece in pieces.items():
            if (waiting := self._partial.pop(name, None)) is not None:
                piece += waiting
        if not one.all_reduces:
            self._partial |= {name: piece.clone() for name, piece in pieces.items()}
            gradient.zero_()
            return
        factor = self._replicas.factor(one)
        if self.handler is not None:
            # A view, so that ``SubmittedBucket.sharded`` sees that this is not all of a gradient.
            self.exchange(self.handler, one, gradient, gradient.view(-1), factor)
            return
        if self.leftover.nbytes():
            self.add_leftover(one, gradient)
        dist.all_reduce(gradient, _operation(factor), group=self._replicas.exchange_group)


class AgentAllReduce:
    """The hook that FSDP2 calls for one module after its reduce-scatter."""

    def __init__(self, slot: ReplicatedSlot, one: ShardedGroup) -> None:
        self.slot, self._one = slot, one

    def __call__(self, gradient: Tensor) -> None:
        self.slot.reduce(self._one, gradient)


def attach_replicated(model: ReplicatedModel) -> ReplicatedSlot:
    """Return the slot of a model with replicas, with the residual of an earlier, closed agent.

    Raises:
        SetupError: Another agent is open on the model.
    """
    found = {hook.slot for group in model.groups if (hook := group.all_reduce_hook) is not None}
    if any(slot.handler is not None for slot in found):
        raise SetupError(
            "this FSDP2 model is wrapped by another Agent already; leave that `with` block first"
        )
    slot = ReplicatedSlot(model)
    for earlier in found:
        slot.leftover, slot._partial = earlier.leftover, earlier._partial
    return slot


def _operation(factor: float) -> Any:
    return dist.ReduceOp.AVG if factor == 1.0 else dist.ReduceOp.SUM
