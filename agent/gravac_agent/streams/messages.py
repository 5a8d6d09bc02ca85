"""Buckets that a device sends as whole messages, in launches that do not grow with ranks: see ``device.tiled``."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gravac import kernels
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
from gravac_agent.streams.groups import Offer, route_of, served, waits_in_little

log = logging.getLogger("gravac.agent")
_FAILED = "compressing bucket %d failed; this rank sends nothing of it in this step"


@dataclass(slots=True)
class SentGroup:
    """The message of a group in flight."""

    work: Work
    buffers: tiled.TiledGroup
    steps: list[tiled.TiledStep]
    own: int
    decoded: bool = False

    def decode(self, counts: Tensor) -> None:
        """Write the means of all buckets, or undo the step. Again, it does nothing."""
        if not self.decoded:
            tiled.decode(self.buffers, counts, self.steps, self.own)
            self.decoded = True


@dataclass(slots=True)
class SentMessage:
    """A bucket's part of a message in flight."""

    group: SentGroup
    step: tiled.TiledStep
    part: ResidualPart
    payload_bytes: int
    sent_bytes: int
    """All of the group's, of its last bucket; else 0."""

    @property
    def work(self) -> Work:
        return self.group.work

    def settle(self, counts: Tensor) -> None:
        """Write the mean, or undo the step."""
        self.group.decode(counts)
        self.step.buffers.in_flight = None
        if self.step.undone is not None:
            self.part.settled_by_device()
        else:
            self.part.resolve(self.step.gradient, counts)  # what failed half way is lost, and said to be

    def undo(self) -> None:
        """Undo the bucket's part of a backward that does not end."""
        if self.step.undone is not None:
            tiled.undo(self.step)
            self.part.settled_by_device()
        else:
            self.step.buffers.clear()
            self.part.resolve(self.step.gradient, False)


class Messages:
    """Makes the messages of a rank's buckets.

    Args:
        encoder: The rank's.
        able: Whether compiled kernels run where the gradients are, on all ranks.
        wait: Lets the current stream wait for a collective.
    """

    def __init__(self, encoder: Encoder, able: bool, wait: Callable[[Work], None]) -> None:
        self._encoder, self.able, self._wait = encoder, able, wait

    def layout(self, channel: BucketChannel, plan: StepPlan, gradient: Tensor) -> tiled.TiledLayout | None:
        """Return the layout of a bucket's message in this step; None: it is sent otherwise. Equal on all ranks."""
        route = route_of(self._encoder, channel, plan, gradient) if self.able else None
        values = None if route is None else route.codec.message_values(gradient.dtype)
        if route is None or values is None or not served(self._encoder):
            return None
        sender = route.sender(plan.cf, gradient.dtype)
        if not isinstance(sender, Gather):
            return None
        numel, known = gradient.numel(), channel.message
        capacity = kept_count(numel, plan.cf)
        if known is not None and known.layout.matches(numel, capacity, values):
            return known.layout
        if -(-numel // tiled.TILE) > tiled.MOST_TILES:
            return None
        layout = tiled.TiledLayout(numel, capacity, values)
        return layout if waits_in_little(layout, sender.world_size) else None

    def send(
        self,
        plan: StepPlan,
        offers: Sequence[Offer],
        sums: StepSums,
        survey: Survey,
        row: Callable[[int], Tensor],
    ) -> list[SentMessage]:
        """Encode a group and issue its collective. What fails before that sends an empty message instead.

        Args:
            plan: Of the step.
            offers: One or more, at most ``MEMBERS``, with layouts of ``layout(…)``. Gradients stay unchanged.
            sums: Flags of the step.
            survey: Of the step.
            row: Returns what receives the sums of a bucket, by its number.

        Raises:
            Exception: The collective raised it.
        """
        ends = self._encoder.aggregators[plan.codec].communicator
        group = _group_of(offers, ends.size)
        steps, ready = [], []
        for offer, buffers in zip(offers, group.members, strict=True):
            step, failed = self._prepare(plan, offer, buffers, survey, row(offer.channel.bucket.number))
            steps.append(step)
            if failed:
                self._note_failure(offer, sums)
            else:
                ready.append((offer, step))
        try:
            tiled.encode(group, [step for _, step in ready])
            for offer, step in ready:
                part = offer.channel.memory
                assert isinstance(part, ResidualPart)
                step.undone = step.rest if part.sent_by_device(step.buffers.places) else None
                offer.channel.failures = 0
        except Exception:
            for offer, step in ready:
                log.exception(_FAILED, offer.channel.bucket.number)
                self._note_failure(offer, sums)
                step.buffers.clear()
        sent = SentGroup(ends.gather(group.arrived.view(-1), group.message), group, steps, ends.rank)
        for buffers in group.members:
            buffers.in_flight = sent.work
        found = []
        for offer, step in zip(offers, steps, strict=True):
            part = offer.channel.memory
            assert isinstance(part, ResidualPart)
            last = step is steps[-1]
            sent_bytes = (ends.size - 1) * group.message.nbytes if last else 0
            found.append(SentMessage(sent, step, part, offer.layout.nbytes, sent_bytes))
        return found

    def _prepare(
        self, plan: StepPlan, offer: Offer, buffers: tiled.TiledBuffers, survey: Survey, row: Tensor
    ) -> tuple[tiled.TiledStep, bool]:
        """Return a bucket's tensors of the step, and whether it failed: then the message sends nothing of it."""
        channel, gradient, part = offer.channel, offer.gradient, offer.channel.memory
        assert isinstance(part, ResidualPart)
        if buffers.in_flight is not None:
            # A backward did not end, and other ranks may still read its message.
            self._wait(buffers.in_flight)
            buffers.clear()
        step = tiled.TiledStep(buffers, gradient, offer.out, None, buffers.values, row)
        terms: PendingSum | None = None
        try:
            channel.begin_message(plan, gradient)
            step.senders = channel.count_senders(offer.layout.numel, gradient.device)
            terms = part.pending_sum(gradient)
            assert terms is not None
            step.residual, _, step.rest = terms
            if survey.wanted:
                survey.add(kernels.tally(gradient, step.residual, out=torch.empty_like(step.rest)))
            if not buffers.ready:
                tiled.first_level(buffers, gradient, step.residual)
        except Exception:
            log.exception(_FAILED, channel.bucket.number)
            buffers.clear()
            if terms is not None:  # all of it waits
                terms.write(gradient, only_finite=True)
                step.undone = terms.out if part.sent_by_device(buffers.places[:0]) else None
            return step, True
        return step, False

    def _note_failure(self, offer: Offer, sums: StepSums) -> None:
        sums.failed = 1.0
        offer.channel.failures += 1


def _group_of(offers: Sequence[Offer], ranks: int) -> tiled.TiledGroup:
    """Return the buffers of a group, made when its buckets or their layouts are others than before."""
    members = []
    for channel, layout, gradient, _ in offers:
        assert isinstance(layout, tiled.TiledLayout)
        if channel.message is None or channel.message.layout is not layout:
            channel.message = tiled.TiledBuffers(layout, gradient.device)
        members.append(channel.message)
    group = offers[0].channel.group
    if group is None or group.members != tuple(members):
        for offer in offers:
            offer.channel.group = None  # of a group that began with this bucket
        group = offers[0].channel.group = tiled.TiledGroup(members, ranks)
    return group
