"""The agent's end of an FSDP2 model. It takes the gradients of the modules one by one, and waits for each mean.

FSDP2 reduces gradients during backward, one module after another, in the same order on all ranks. It uses each result
at once, so a call must not return before the result is there, or its stream waits for it. Only the end of backward
shows which call was the last.
"""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives import Transfer
from gravac.memories import Bucket, Memory, NoMemory, ResidualMemory
from gravac.memories.states import to_dense
from gravac_agent.exchange.hook import add_leftover
from gravac_agent.exchange.step import SubmittedBucket
from gravac_agent.fsdp.groups import ShardedGroup, first_calls
from gravac_agent.fsdp.model import ShardedModel

log = logging.getLogger("gravac.agent")


class ShardHandler(Protocol):
    """Handles the gradients of sharded modules while the agent is open."""

    def begin_backward(self, abandoned: bool) -> None:
        """Begin a step. ``abandoned`` says that the backward before ended in an exception, so its step is undone."""

    def submit_sharded(self, bucket: Bucket, gradient: Tensor, out: Tensor, factor: float) -> None:
        """Take a gradient. What the current stream is given next sees ``factor`` times the mean in ``out``."""

    def end_backward(self) -> None:
        """End the step's exchange."""

    def fail(self, error: Exception) -> None:
        """Raise ``error`` on the training thread, before an optimizer steps."""


class ModuleHook(ABC):
    """The agent's end of a model that reduces its gradients module by module.

    Args:
        model: The model.

    Attributes:
        handler: Takes the gradients; None while no agent is open.
        leftover: The residual of a closed agent.
    """

    def __init__(self, model: ShardedModel) -> None:
        self._model = model
        self.handler: ShardHandler | None = None
        self.leftover: Memory = NoMemory()
        self._calls: Counter[int] = Counter()  # by group, in the running backward
        self._running = self._abandoned = self._failed = False

    @abstractmethod
    def take_over(self) -> None:
        """Let FSDP2 pass the gradients of all modules to this hook."""

    def release(self, leftover: Memory) -> None:
        """Reduce densely again. A parameter with a residual sends it with the next gradient, in its first reduction."""
        self.handler, self.leftover = None, leftover
        if any(group.calls > 1 for group in self._model.groups):
            self.leftover = ResidualMemory()
            self.leftover.load_state_dict(first_calls(to_dense(leftover.state_dict())))

    @abstractmethod
    def dense_on(self, group: dist.ProcessGroup) -> Callable[[SubmittedBucket], Transfer]:
        """Return what issues FSDP2's own collective on ``group``, for the exchange thread."""

    def forward_began(self) -> None:
        """Note that no backward is running. If the last one has not called back, it ended in an exception."""
        if self._running:
            self._running, self._abandoned, self._failed = False, True, False

    def exchange(
        self, handler: ShardHandler, sharded: ShardedGroup, gradient: Tensor, out: Tensor, factor: float
    ) -> None:
        """Let the agent reduce a gradient, and wait for it. It never raises.

        Args:
            handler: The handler of the open agent.
            sharded: The module's group.
            gradient: The module's gradient.
            out: Receives ``factor`` times the mean of this rank's shard; zeros after a failure.
            factor: The factor of the mean.
        """
        try:
            if not self._running:  # the first module of a backward
                # Autograd calls it after all hooks of this backward, which no public API of PyTorch does.
                torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
                self._running = True
                abandoned, self._abandoned = self._abandoned, False
                self._calls.clear()
                handler.begin_backward(abandoned)
            if not self._failed:
                call = self._calls[sharded.number]
                self._calls[sharded.number] += 1
                bucket = self._model.bucket(sharded, gradient.numel(), call)
                handler.submit_sharded(bucket, gradient, out, factor)
                return
        except Exception as error:
            # Not raised into autograd, which would end this backward while other ranks wait in theirs: ``fail`` raises
            # it before the optimizer steps.
            log.exception("the gradient of FSDP module %r could not be reduced", sharded.label or "model")
            self._failed = True
            handler.fail(error)
        out.zero_()

    def add_leftover(self, sharded: ShardedGroup, gradient: Tensor) -> None:
        """Add the residual of a closed agent to a gradient that is about to be reduced densely. It never raises."""
        try:
            bucket = self._model.bucket(sharded, gradient.numel(), 0)
            add_leftover(self.leftover, bucket, gradient, self._model.exchange_group.size())
        except Exception:
            log.exception(
                "the residual of a closed agent is lost for FSDP module %r", sharded.label or "model"
            )

    def _end_backward(self) -> None:
        self._running = False
        failed, self._failed = self._failed, False
        if self.handler is not None and not failed:
            self.handler.end_backward()
