"""What runs the exchange of a rank: threads of the host, or streams of a device. Both behave alike."""

from collections.abc import Callable
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

    The training thread calls ``begin_step``, then ``submit`` for each bucket in order, then ``wait_step``. The executor
    never calls back into the training thread.
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

    def submit(
        self, bucket: Bucket, buffer: Tensor, last: bool, out: Tensor | None = None, factor: float = 1.0
    ) -> torch.futures.Future[Tensor]:
        """Queue one bucket, and return a future of its mean over ranks, times ``factor``. It never raises.

        Args:
            bucket: Which parameters the buffer is made of.
            buffer: The gradient, shape ``(n,)``.
            last: Whether it is the last bucket of the step. If the trainer cannot know, it calls ``end_backward``.
            out: Receives the mean of this rank's shard; None if ``buffer`` receives the mean of the whole.
            factor: The number of ranks for a trainer that wants the sum, as FSDP2 may.
        """

    def end_backward(self) -> None:
        """End a step whose last bucket was not named. The futures of all buckets must be done."""

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
