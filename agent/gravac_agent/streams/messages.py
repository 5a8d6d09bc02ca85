"""Buckets that a device sends as whole messages, in launches that do not grow with ranks: see ``device.tiled``, and for
those of owners ``device.owned``."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gravac import kernels
from gravac.collectives import Communicator, Owners, Work
from gravac.collectives.gather import Gather
from gravac.collectives.owners import PARTS, seed_of
from gravac.compressors.base import Key, kept_count
from gravac.kernels.device import owned, tiled
from gravac.kernels.device.owned import OwnedBuffers, OwnedGroup, OwnedLayout
from gravac.kernels.device.tiled import TiledLayout
from gravac.memories.base import PendingSum
from gravac.memories.residual import ResidualPart
from gravac_agent.exchange.channel import BucketChannel
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.compensation import Survey
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.exchange.tick import StepSums
from gravac_agent.streams.groups import GroupOffer, route_of, served, waits_in_little

log = logging.getLogger("gravac.agent")
_FAILED = "compressing bucket %d failed; this rank sends nothing of it in this step"


@dataclass(slots=True)
class SentGroup:
    """The message of a group in flight."""

    work: Work
    buffers: tiled.TiledGroup
    steps: list[tiled.TiledStep]
    own: int
    decoded: bool = field(default=False, init=False)
    halfway: bool = field(default=False, init=False)
    """Whether ``pass_on`` has to issue a second collective."""

    def pass_on(self) -> None:
        """Issue the second collective. The stream waits for the first."""

    def fly(self, work: Work) -> None:
        """Take note of the collective that was issued last."""
        self.work = work
        for buffers in self.buffers.members:
            buffers.in_flight = work

    def decode(self, counts: Tensor) -> None:
        """Write the means of all buckets, or undo the step. Again, it does nothing."""
        if not self.decoded:
            self._decode(counts)
            self.decoded = True

    def undo(self, step: tiled.TiledStep) -> None:
        """Undo a bucket's part of a backward that does not end."""
        tiled.undo(step)

    def _decode(self, counts: Tensor) -> None:
        tiled.decode(self.buffers, counts, self.steps, self.own)


@dataclass(slots=True)
class SentShards(SentGroup):
    """The messages of a group to owners in flight, and then those of owners to all."""

    buffers: OwnedGroup
    ends: Communicator
    wait: Callable[[Work], None]
    added: bool = field(default=False, init=False)
    """Whether this owner has added what arrived."""

    def __post_init__(self) -> None:
        self.halfway = True

    def pass_on(self) -> None:
        """Add up what ranks have for this owner, and send the largest sums to all.

        Raises:
            Exception: A collective raised it.
        """
        self.halfway = False
        self.wait(self.work)
        owned.add_up(self.buffers, self.steps)
        self.added = True
        self.fly(self.ends.gather(self.buffers.arrived.view(-1), self.buffers.message[self.own]))

    def undo(self, step: tiled.TiledStep) -> None:
        owned.undo(step, self.added)

    def _decode(self, counts: Tensor) -> None:
        owned.decode(self.buffers, counts, self.steps)


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

    def resolve(self, counts: Tensor) -> None:
        """Write the mean, or undo the step."""
        self.group.decode(counts)
        self.step.buffers.in_flight = None
        if self.step.undone is not None:
            self.part.resolved_by_device()
        else:
            self.part.resolve(self.step.gradient, counts)  # what failed half way is lost, and said to be

    def undo(self) -> None:
        """Undo the bucket's part of a backward that does not end."""
        if self.step.undone is not None:
            self.group.undo(self.step)
            self.part.resolved_by_device()
        else:
            self.step.buffers.clear()
            self.part.resolve(self.step.gradient, False)


class Messages:
    """Makes the messages of a rank's buckets.

    Args:
        channels: The rank's.
        able: Whether compiled kernels run where the gradients are, on all ranks.
        wait: Lets the current stream wait for a collective.
    """

    def __init__(self, channels: Channels, able: bool, wait: Callable[[Work], None]) -> None:
        self._channels, self.able, self._wait = channels, able, wait

    def layout(
        self, channel: BucketChannel, plan: StepPlan, gradient: Tensor
    ) -> TiledLayout | OwnedLayout | None:
        """Return the layout of a bucket's messages in this step; None: it is sent otherwise. Equal on all ranks."""
        route = route_of(self._channels, channel, plan, gradient) if self.able else None
        values = None if route is None else route.codec.message_values(gradient.dtype)
        if route is None or values is None or not served(self._channels):
            return None
        sender, numel = route.sender(plan.cf, gradient.dtype), gradient.numel()
        capacity, ranks, known = kept_count(numel, plan.cf), sender.world_size, _layout_of(channel)
        layout: TiledLayout | OwnedLayout
        if isinstance(sender, Owners):
            capacity = -(-capacity // ranks)
            if isinstance(known, OwnedLayout) and known.matches(numel, capacity, values, ranks):
                return known
            tile = owned.tile_of(numel, ranks)
            if tile is None or ranks == 1:
                return None
            seed = seed_of(Key(0, 0, channel.bucket.number, 0))
            layout = OwnedLayout(numel, capacity, values, ranks, seed, tile)
        elif isinstance(sender, Gather):
            if isinstance(known, TiledLayout) and known.matches(numel, capacity, values):
                return known
            if -(-numel // tiled.TILE) > tiled.MOST_TILES:
                return None
            layout = TiledLayout(numel, capacity, values)
        else:
            return None
        return layout if waits_in_little(layout, ranks) else None

    def send(
        self,
        plan: StepPlan,
        offers: Sequence[GroupOffer],
        sums: StepSums,
        survey: Survey,
        row: Callable[[int], Tensor],
    ) -> list[SentMessage]:
        """Encode a group and issue its collective. What fails before that sends an empty message instead.

        Args:
            plan: Plan of the step.
            offers: One or more, at most ``MEMBERS``, with layouts of ``layout(…)``. Gradients stay unchanged.
            sums: Flags of the step.
            survey: Survey of the step.
            row: Returns what receives the sums of a bucket, by its number.

        Raises:
            Exception: The collective raised it.
        """
        ends = self._channels.aggregators[plan.codec].communicator
        group = _group_of(offers, ends)
        steps, ready = [], []
        for offer, buffers in zip(offers, group.members, strict=True):
            step, failed = self._prepare(plan, offer, buffers, survey, row(offer.channel.bucket.number))
            steps.append(step)
            if failed:
                self._note_failure(offer, sums)
            else:
                ready.append((offer, step))
        try:
            if isinstance(group, OwnedGroup):
                owned.encode(group, [step for _, step in ready])
            else:
                tiled.encode(group, [step for _, step in ready])
            for offer, step in ready:
                part = offer.channel.memory
                assert isinstance(part, ResidualPart)
                places = step.buffers.sent_places() if part.keeps_before else step.buffers.places
                step.undone = step.rest if part.sent_by_device(places) else None
                offer.channel.failures = 0
        except Exception:
            for offer, step in ready:
                log.exception(_FAILED, offer.channel.bucket.number)
                self._note_failure(offer, sums)
                step.buffers.clear()
                if isinstance(group, OwnedGroup):
                    step.rest.zero_()  # what it holds is lost, and must not be in the sums
        sent = self._issue(group, steps, ends)
        sent.fly(sent.work)
        link_bytes = (ends.size - 1) * group.message.nbytes
        if isinstance(group, OwnedGroup):
            link_bytes = 2 * link_bytes // ends.size
        found = []
        for offer, step in zip(offers, steps, strict=True):
            part, layout, last = offer.channel.memory, offer.layout, step is steps[-1]
            assert isinstance(part, ResidualPart)
            payload_bytes = layout.payload_bytes if isinstance(layout, OwnedLayout) else layout.nbytes
            found.append(SentMessage(sent, step, part, payload_bytes, link_bytes if last else 0))
        return found

    def _issue(self, group: tiled.TiledGroup, steps: list[tiled.TiledStep], ends: Communicator) -> SentGroup:
        """Issue a group's first collective."""
        arrived, message = group.arrived.view(-1), group.message.view(-1)
        if isinstance(group, OwnedGroup):
            return SentShards(ends.exchange(arrived, message), group, steps, ends.rank, ends, self._wait)
        return SentGroup(ends.gather(arrived, message), group, steps, ends.rank)

    def _prepare(
        self, plan: StepPlan, offer: GroupOffer, buffers: tiled.TiledBuffers, survey: Survey, row: Tensor
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
            parts = PARTS if isinstance(buffers, OwnedBuffers) else None
            step.senders = channel.count_senders(offer.layout.numel, gradient.device, parts)
            terms = part.pending_sum(gradient)
            assert terms is not None
            step.residual, _, step.rest = terms
            if survey.wanted:
                survey.add(kernels.tally(gradient, step.residual, out=torch.empty_like(step.rest)))
            if not buffers.ready:
                first = owned.first_level if isinstance(buffers, OwnedBuffers) else tiled.first_level
                first(buffers, gradient, step.residual)
        except Exception:
            log.exception(_FAILED, channel.bucket.number)
            buffers.clear()
            if terms is not None:  # all of it waits
                terms.write(gradient, only_finite=True)
                step.undone = terms.out if part.sent_by_device(buffers.places[:0]) else None
            elif isinstance(buffers, OwnedBuffers):
                # What other ranks have for it is added there, and sent or lost.
                step.rest = torch.zeros(gradient.numel(), dtype=torch.float32, device=gradient.device)
            return step, True
        return step, False

    def _note_failure(self, offer: GroupOffer, sums: StepSums) -> None:
        sums.failed = 1.0
        offer.channel.failures += 1


def _layout_of(channel: BucketChannel) -> TiledLayout | OwnedLayout | None:
    """Return the layout that a bucket's buffers are for."""
    buffers = channel.message
    if isinstance(buffers, OwnedBuffers):
        return buffers.whole
    return None if buffers is None else buffers.layout


def _group_of(offers: Sequence[GroupOffer], ends: Communicator) -> tiled.TiledGroup:
    """Return the buffers of a group, made when its buckets or their layouts are others than before."""
    members = []
    for channel, layout, gradient, _ in offers:
        if channel.message is None or _layout_of(channel) is not layout:
            if isinstance(layout, OwnedLayout):
                channel.message = OwnedBuffers(layout, ends.rank, gradient.device)
            else:
                assert isinstance(layout, TiledLayout)
                channel.message = tiled.TiledBuffers(layout, gradient.device)
        members.append(channel.message)
    group = offers[0].channel.group
    if group is None or group.members != tuple(members):
        for offer in offers:
            offer.channel.group = None  # of a group that began with this bucket
        kind = OwnedGroup if isinstance(members[0], OwnedBuffers) else tiled.TiledGroup
        group = offers[0].channel.group = kind(members, ends.size)
    return group
