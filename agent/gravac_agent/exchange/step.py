"""What belongs to one step: its buckets on their way through the exchange thread, and its result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives import Transfer, Work
from gravac.memories import Bucket
from gravac.signals.spectrum import Curve
from gravac_agent.exchange.channel import BucketChannel
from gravac_agent.exchange.compensation import Survey
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.exchange.tick import NOT_READ, StepSums, Tick

SEED = 0
"""Seed of the random numbers of all codecs, equal on all ranks. Step, bucket and rank make them differ."""
Activity = Literal["compress", "communicate", "inside", "decompress"]
"""``inside``: communicate with the other ranks of the host alone."""


@dataclass(slots=True, eq=False)
class SubmittedBucket:
    """A bucket that the trainer's backward handed over."""

    bucket: Bucket
    buffer: Tensor
    """The trainer's own tensor with the gradient."""
    last: bool
    """Whether it is the last bucket of the step."""
    future: torch.futures.Future[Tensor]
    """What the trainer waits for."""
    out: Tensor
    """Receives the mean over ranks: ``buffer`` itself under DDP, this rank's shard under FSDP2."""
    factor: float = 1.0
    """Factor of the mean: the number of ranks if the trainer wants the sum."""
    whole: "SubmittedBucket | None" = None
    """What the trainer handed over, where this is a rank's piece of it."""

    @property
    def sharded(self) -> bool:
        """Whether the trainer waits for this bucket alone, as FSDP2 does: it has another tensor for the mean."""
        whole = self.whole or self
        return whole.out is not whole.buffer

    def part_of_norm(self, mean_sq: Any, ranks: int) -> Any:
        """Return this rank's part of ‖mean‖², which adds up over the ``ranks`` that exchange this bucket.

        Args:
            mean_sq: ‖``out``‖².
            ranks: How many there are. Each has a row of the mean, or all have the same.
        """
        same = ranks if self.sharded and self.out.numel() == self.buffer.numel() else 1
        return mean_sq / (self.factor**2 * same)


class BucketPhase(Enum):
    """How far a bucket has come on its way through the exchange thread."""

    SENT = auto()  # its transfer has not ended, on the real network or on the emulated link
    ARRIVED = auto()  # its mean is not in the buffer yet
    DECODED = auto()  # its mean is there, or nobody wants it any more, and goes to the ranks of the host
    SHARED = auto()  # the mean is on its way to them


@dataclass(slots=True, eq=False)
class InFlight:
    """A bucket whose collective was issued and whose mean the trainer does not have yet."""

    submitted: SubmittedBucket
    channel: BucketChannel
    transfer: Transfer
    in_place: bool
    """Whether the buffer itself is all-reduced."""
    raw: bool
    """Whether the mean will be that of the raw gradients."""
    unresolved: bool
    """Whether the buffer must keep the gradient until it is known whether the step counts."""
    proven: bool
    """Whether all ranks have decoded this bucket before, sent with this codec."""
    works: Sequence[Work]
    """What the wait thread waits for: the transfer, then the collectives that share the mean within the host."""
    phase: BucketPhase = BucketPhase.SENT
    ends_at: float | None = None
    """Monotonic seconds at which the link, real or emulated, is done; None while it is on the real network."""
    error: Exception | None = None
    """The error that a collective raised."""


@dataclass(slots=True)
class StepResult:
    """What one step did on this rank, and the tick that all ranks share."""

    tick: Tick = NOT_READ
    last_submit_at: float = 0.0
    """Monotonic seconds: when backward handed over its last bucket."""
    activity: list[tuple[Activity, float, float]] = field(default_factory=list)
    """What the exchange thread did: activity, begin and end in monotonic seconds."""
    dense_bytes: int = 0
    payload_bytes: int = 0
    mean_sq: float | None = 0.0
    """‖mean over ranks of the raw gradients‖², the same on all ranks. None unless every bucket was sent raw; on a
    device, also in a step that is not surveyed."""
    raw: bool = True
    """Whether every bucket was sent raw, so that the mean is that of the raw gradients."""
    finite: bool = True
    """False if the mean overflowed the gradients' format. It is equal on all ranks, since all hold the same bits."""
    curve: Curve | None = None
    """This rank's gain curve; None if the step was not surveyed or not finite."""
    cpu_seconds: float = 0.0
    """CPU time of the exchange thread."""
    exchanged: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64, device="cpu"))
    """Sample of the mean that was exchanged; valid until the next step begins."""
    inside_bytes: int = 0
    """Bytes that this rank sent to the others of its host."""


@dataclass(slots=True, kw_only=True)
class StepRecord(StepResult):
    """The running step on this rank. Only the exchange thread writes to it, except for ``last_submit_at``."""

    plan: StepPlan
    number: int
    survey: Survey
    sums: StepSums = field(default_factory=StepSums)
    vector: Tensor | None = None
    """This rank's tick, which ``tick_work`` sums over ranks."""
    tick_work: dist.Work | None = None
    counts: bool | None = None
    """Whether the step counts; None while that is not known."""
    error: Exception | None = None
    """The first error that a collective raised."""
    complete: bool = False
    """Whether all transfers between hosts have ended, and the end of the step has not."""
    overflows: bool = False
    """Whether a bucket is in float16, so that means of finite parts may overflow."""


class Signal(Enum):
    """Messages to the exchange thread, beside what it must send."""

    END_OF_BACKWARD = auto()  # which alone shows under FSDP2 that no bucket of the step follows
    DUE = auto()  # the emulated link is done with the oldest transfer
    STOP = auto()


Message = SubmittedBucket | InFlight | Signal | Callable[[], None]
"""What the exchange thread acts on: a bucket to send; one whose works are done, though an emulated link may still hold
it back; a signal; or a function to run, such as one that issues another collective of the agent."""
