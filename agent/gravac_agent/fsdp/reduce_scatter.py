"""The reduce-scatter that FSDP2 calls while an agent is open: it passes gradients to the agent and waits for the mean.

FSDP2 calls it during backward, for one module after another, in the same order on all ranks. It uses the result at
once, so the call ends when the result is there. Which call is the last one only the end of backward shows.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives import InPlace, Transfer, communicator, scatter_bytes
from gravac.memories import Bucket, Memory, NoMemory
from gravac_agent.errors import SetupError
from gravac_agent.exchange import hook
from gravac_agent.exchange.hook import HookState, add_leftover
from gravac_agent.exchange.step import SubmittedBucket
from gravac_agent.fsdp.groups import ShardedGroup
from gravac_agent.fsdp.model import DataParallel, ShardedModel

log = logging.getLogger("gravac.agent")


class ShardHandler(Protocol):
    """Handles the gradients of sharded modules while the agent is open."""

    def begin_backward(self, abandoned: bool) -> None:
        """Begin a step. ``abandoned``: the backward before ended in an exception, so its step does not count."""

    def submit_rows(
        self, bucket: Bucket, rows: Tensor, out: Tensor, factor: float
    ) -> torch.futures.Future[Tensor]:
        """Take a gradient; the future is done when ``out`` holds ``factor`` times the mean of this rank's row."""

    def end_backward(self) -> None:
        """End the step's exchange."""

    def fail(self, error: Exception) -> None:
        """Raise ``error`` on the training thread, before an optimizer steps."""


class ShardedSlot:
    """The agent's end of a sharded model.

    Attributes:
        handler: Takes the gradients; None while no agent is open.
        leftover: The residual of a closed agent.
    """

    def __init__(self, model: ShardedModel) -> None:
        self._model = model
        self._plain = [_plain(one.reduce_scatter) for one in model.groups]
        self.handler: ShardHandler | None = None
        self.leftover: Memory = NoMemory()
        self._op: Any = dist.ReduceOp.AVG
        self._calls: Counter[int] = Counter()  # by group, in the running backward
        self._running = self._abandoned = self._failed = False

    def take_over(self) -> None:
        """Put the agent's reduce-scatter into all modules."""
        for one in self._model.groups:
            one.reduce_scatter = AgentReduceScatter(self, one, self._plain[one.number])

    def release(self, leftover: Memory) -> None:
        """Give the modules back. Those with a residual send it with their next gradient and are given back then."""
        self.handler, self.leftover = None, leftover
        for one in self._model.groups:
            if not leftover.has_residual(one.bucket(one.numel, 0, len(self._model.groups))):
                one.reduce_scatter = self._plain[one.number]

    def dense_on(self, group: dist.ProcessGroup) -> Callable[[SubmittedBucket], Transfer]:
        """Return what issues FSDP2's own reduce-scatter on ``group``, for the exchange thread."""

        ends = communicator(group)

        def issue(submitted: SubmittedBucket) -> Transfer:
            plain = self._plain[submitted.bucket.number % len(self._model.groups)]
            work = plain(submitted.out, submitted.buffer, group, self._op, async_op=True)
            nbytes = submitted.buffer.nbytes
            return InPlace(work, scatter_bytes(nbytes, ends.size, ends.scatters_whole), nbytes)

        return issue

    def forward_began(self) -> None:
        """Note that no backward runs. One that has not called back has ended in an exception."""
        if self._running:
            self._running, self._abandoned, self._failed = False, True, False

    def reduce(self, one: ShardedGroup, out: Tensor, rows: Tensor, op: Any) -> bool:
        """Reduce a gradient with the agent. Returns False where PyTorch is to do it. Never raises.

        Args:
            one: The module's group.
            out: Receives this rank's row of the result.
            rows: The gradient, a row for each rank.
            op: FSDP2's operation.
        """
        factor = _factor(op, one.ranks)
        handler = self.handler
        if handler is None or factor is None:
            if factor is not None:
                self._send_leftover(one, rows)
            return False
        try:
            if not self._running:
                torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
                self._running = True
                abandoned, self._abandoned = self._abandoned, False
                self._calls.clear()
                handler.begin_backward(abandoned)
            if not self._failed:
                call = self._calls[one.number]
                self._calls[one.number] += 1
                self._op = op
                bucket = one.bucket(rows.numel(), call, len(self._model.groups))
                handler.submit_rows(bucket, rows, out, factor).wait()
                return True
        except Exception as error:
            log.exception("the gradient of FSDP module %r could not be reduced", one.label or "model")
            self._failed = True
            handler.fail(error)
        out.zero_()
        return True

    def _send_leftover(self, one: ShardedGroup, rows: Tensor) -> None:
        bucket = one.bucket(rows.numel(), 0, len(self._model.groups))
        try:
            add_leftover(self.leftover, bucket, rows, one.ranks)
        except Exception:
            log.exception("the residual of a closed agent is lost for FSDP module %r", one.label or "model")
        one.reduce_scatter = self._plain[one.number]

    def _end_backward(self) -> None:
        self._running = False
        failed, self._failed = self._failed, False
        if self.handler is not None and not failed:
            self.handler.end_backward()


class AgentReduceScatter:
    """What FSDP2 calls for one module. It allocates as the reduce-scatter did that it replaces."""

    def __init__(self, slot: ShardedSlot, one: ShardedGroup, plain: Any) -> None:
        self.slot, self._one, self.plain = slot, one, plain

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
        if self.slot.reduce(self._one, output_tensor, input_tensor, op):
            return None
        work: dist.Work | None = self.plain(output_tensor, input_tensor, group, op, async_op)
        return work


def attach_sharded(model: ShardedModel) -> ShardedSlot:
    """Return the slot of a sharded model, with the residual of an earlier, closed agent.

    Raises SetupError when another agent is open on it.
    """
    leftover: Memory = NoMemory()
    for one in model.groups:
        comm = one.reduce_scatter
        if isinstance(comm, AgentReduceScatter):
            if comm.slot.handler is not None:
                raise SetupError(
                    "this FSDP2 model is wrapped by another Agent already; leave that `with` block first"
                )
            leftover = comm.slot.leftover
    slot = ShardedSlot(model)
    slot.leftover = leftover
    return slot


def attach(module: DataParallel) -> HookState | ShardedSlot:
    """Return where the agent gets the module's gradients. Raises SetupError when another agent or hook gets them."""
    return attach_sharded(module) if isinstance(module, ShardedModel) else hook.attach(module)


def _plain(comm: Any) -> Any:
    return comm.plain if isinstance(comm, AgentReduceScatter) else comm


def _factor(op: Any, ranks: int) -> float | None:
    """Return what FSDP2's operation makes of the mean; None for one that the agent does not know."""
    if op == dist.ReduceOp.AVG:
        return 1.0
    return float(ranks) if op == dist.ReduceOp.SUM else None
