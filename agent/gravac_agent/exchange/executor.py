"""What runs the exchange of a rank: threads of the host, or streams of a device. Both behave alike."""

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor

from gravac.memories import Bucket, Memory
from gravac_agent.devices import Device
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.exchange.step import StepResult
from gravac_agent.exchange.tick import TickCodec


class Executor(Protocol):
    """Exchanges the buckets of one rank, in the order in which they are submitted.

    The training thread calls ``begin_step``, then ``submit`` for each bucket in order, then ``wait_step``. FSDP2 calls
    ``submit_now`` for each module, and ``end_backward``. The executor never calls back into the training thread.
    """

    @property
    def defers_result(self) -> bool:
        """Whether a step's result is known when the next one begins, and not before the optimizer steps."""

    @property
    def device(self) -> Device | None:
        """The device of the gradients; None if they are in the host's memory."""

    @property
    def tick_codec(self) -> TickCodec:
        """Packs and unpacks ticks."""

    def begin_step(self, plan: StepPlan, number: int, surveyed: bool) -> None:
        """Fix the plan of the next step. Call it after ``wait_step`` of the one before.

        Args:
            plan: The plan.
            number: The step's number, from 0.
            surveyed: Whether to measure the gain curve.
        """

    def submit(self, bucket: Bucket, buffer: Tensor, last: bool) -> torch.futures.Future[Tensor]:
        """Queue one bucket, and return a future of ``buffer``, which then holds the mean over ranks. It never raises.

        Args:
            bucket: Which parameters the buffer is made of.
            buffer: The gradient, shape ``(n,)``.
            last: Whether it is the last bucket of the step.
        """

    def submit_now(self, bucket: Bucket, gradient: Tensor, out: Tensor, factor: float) -> None:
        """Exchange one gradient whose mean the caller uses at once. It never raises.

        The host waits for the mean, or on a device the current stream does: what it is given next sees ``out``.

        Args:
            bucket: Which parameters the gradient is made of.
            gradient: Shape ``(n,)``. On a device the current stream may have its memory for other things next.
            out: Receives the mean: of this rank's row of the gradient, or of all of it.
            factor: Factor of the mean: the number of ranks for a trainer that wants the sum, as FSDP2 may.
        """

    def end_backward(self, gradients: Iterable[Tensor]) -> None:
        """End a step whose gradients were given to ``submit_now``.

        Args:
            gradients: What the optimizer steps by. On a device they become NaN if the step does not count, where what
                was sent may not show it. The current stream must be in order with them.
        """

    def check(self) -> None:
        """Raise what has failed so far in the running step, if that is known before ``wait_step``."""

    def wait_step(self) -> StepResult:
        """Wait for the tick, which ends the step, and return the step's result.

        Raises:
            PeerError: A collective failed because a rank is gone.
            Exception: Anything else that a collective raised.
        """

    def enqueue(self, job: Callable[[], None]) -> None:
        """Run ``job``, which may issue collectives, after everything queued so far. It must not raise."""

    def run(self, job: Callable[[], object]) -> None:
        """Run ``job`` after everything queued so far, and wait for it. Raise what it raises."""

    def run_between_steps(self, job: Callable[[], None]) -> None:
        """Run ``job``, which changes the memory or a codec, in order with the encoding of buckets: between steps."""

    def abandon(self) -> None:
        """Undo in the error memory what a backward sent that did not end. Call it between steps."""

    def failed(self, buffer: Tensor) -> torch.futures.Future[Tensor]:
        """Set ``buffer`` to zero and return a future of it, for a bucket that is not exchanged."""

    def detached(self, memory: Memory) -> Memory:
        """Return the memory of a closed agent, for use without this executor."""

    def close(self) -> bool:
        """Wait until everything that is queued is done, and end. Return False if it does not end in time."""
