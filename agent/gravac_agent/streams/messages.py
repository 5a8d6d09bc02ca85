"""Buckets that a device sends as whole messages, in launches that do not grow with ranks: see ``device.tiled``."""

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from gravac import kernels
from gravac.aggregators.oneshot import CodecBucket, OneShot
from gravac.collectives import Work
from gravac.collectives.gather import Gather
from gravac.compressors.base import kept_count
from gravac.kernels.device import tiled
from gravac.memories.base import PendingSum
from gravac.memories.residual import ResidualPart
from gravac_agent.exchange.channel import BucketChannel
from gravac_agent.exchange.compensation import Survey
from gravac_agent.exchange.encoder import Encoder
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.exchange.tick import StepSums

log = logging.getLogger("gravac.agent")


@dataclass(slots=True)
class SentMessage:
    """A bucket's message in flight."""

    work: Work
    sent_bytes: int
    payload_bytes: int
    buffers: tiled.TiledBuffers
    part: ResidualPart
    residual: Tensor | None
    """In which the device undoes a step that does not count; None: the memory has a draft, or nothing to undo."""
    senders: Tensor | None
    own: int

    def settle(self, gradient: Tensor, out: Tensor, counts: Tensor) -> None:
        """Write the mean, or undo the step. ``gradient`` may be ``out``."""
        tiled.decode(self.buffers, counts, gradient, out, self.residual, self.senders, self.own)
        self.buffers.waits = False
        if self.residual is not None:
            self.part.settled_by_device()
        else:
            self.part.resolve(gradient, counts)  # what failed half way is lost, and said to be

    def undo(self, gradient: Tensor) -> None:
        """Undo the bucket's part of a backward that does not end."""
        if self.residual is not None:
            tiled.undo(self.buffers, gradient, self.residual)
            self.part.settled_by_device()
        else:
            self.buffers.clear()
            self.part.resolve(gradient, False)


def served(encoder: Encoder) -> bool:
    """Return whether a rank's memory lets its device make whole messages. Equal on all ranks."""
    memory = encoder.memory
    return memory.part is ResidualPart and memory.offered_share() == 1.0 and encoder.unused_everywhere is None


class Messages:
    """Makes the messages of a rank's buckets.

    Args:
        encoder: The rank's.
        able: Whether compiled kernels run where the gradients are, on all ranks.
    """

    def __init__(self, encoder: Encoder, able: bool) -> None:
        self._encoder, self.able = encoder, able

    def layout(self, channel: BucketChannel, plan: StepPlan, gradient: Tensor) -> tiled.TiledLayout | None:
        """Return the layout of a bucket's message in this step; None: it is sent otherwise. Equal on all ranks."""
        encoder = self._encoder
        if not self.able or plan.measured != (plan.cf,) or channel.dense or not channel.uses_memory:
            return None
        if gradient.is_sparse or not gradient.numel() or not gradient.is_contiguous():
            return None
        aggregator = encoder.aggregators[plan.codec]
        if not served(encoder) or not isinstance(aggregator, OneShot):
            return None
        route = channel.route(plan)
        assert isinstance(route, CodecBucket)
        values = route.codec.message_values(gradient.dtype)
        if values is None or not isinstance(route.sender(plan.cf, gradient.dtype), Gather):
            return None
        numel, known = gradient.numel(), channel.message
        capacity = kept_count(numel, plan.cf)
        if known is not None and known.layout.matches(numel, capacity, values):
            return known.layout
        if -(-numel // tiled.TILE) > tiled.MOST_TILES:
            return None
        return tiled.TiledLayout(numel, capacity, values)

    def send(
        self,
        channel: BucketChannel,
        plan: StepPlan,
        layout: tiled.TiledLayout,
        gradient: Tensor,
        sums: StepSums,
        survey: Survey,
        row: Tensor,
    ) -> SentMessage:
        """Encode a bucket and issue its collective. What fails before that sends an empty message instead.

        Args:
            channel: The bucket's.
            plan: Of the step.
            layout: ``layout(…)``.
            gradient: The trainer's buffer; unchanged.
            sums: Flags of the step.
            survey: Of the step.
            row: Receives the bucket's sums.

        Raises:
            Exception: The collective raised it.
        """
        ends, part = self._encoder.aggregators[plan.codec].communicator, channel.memory
        assert isinstance(part, ResidualPart)
        buffers = channel.message
        if buffers is None or buffers.layout is not layout:
            buffers = channel.message = tiled.TiledBuffers(layout, ends.size, gradient.device)
        if buffers.waits:  # a backward did not end
            buffers.clear()
        buffers.waits = True
        terms: PendingSum | None = None
        undoes: Tensor | None = None
        try:
            channel.begin_message(plan, gradient)
            terms = part.pending_sum(gradient)
            assert terms is not None
            residual, _, out = terms
            if survey.wanted:
                survey.add(kernels.tally(gradient, residual, out=torch.empty_like(out)))
            if not buffers.ready:
                tiled.first_level(buffers, gradient, residual)
            terms = None  # from here on it may be written
            tiled.encode(buffers, gradient, residual, out, row)
            undoes = out if part.sent_by_device(buffers.places) else None
            channel.failures = 0
        except Exception:
            log.exception(
                "compressing bucket %d failed; this rank sends nothing of it in this step",
                channel.bucket.number,
            )
            sums.failed = 1.0
            channel.failures += 1
            buffers.clear()
            if terms is not None:  # all of it waits
                terms.write(gradient, only_finite=True)
                undoes = terms.out if part.sent_by_device(buffers.places[:0]) else None
        work = ends.gather(buffers.arrived.view(-1), buffers.message)
        senders = channel.count_senders(layout.numel, gradient.device)
        return SentMessage(
            work, (ends.size - 1) * layout.nbytes, layout.nbytes, buffers, part, undoes, senders, ends.rank
        )
