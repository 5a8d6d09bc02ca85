"""Buckets of which a device sends every element in few bits, in launches that do not grow with ranks: see
``device.rounded``."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gravac import kernels
from gravac.collectives import Communicator, Work
from gravac.collectives.compressed_all_reduce import CompressedAllReduce
from gravac.collectives.gather import Gather
from gravac.collectives.messages import owner_key
from gravac.compressors import Key
from gravac.kernels.device import rounded
from gravac.memories.base import PendingSum
from gravac.memories.residual import ResidualPart
from gravac_agent.exchange.channel import BucketChannel
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.compensation import Survey
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.exchange.tick import StepSums
from gravac_agent.streams.groups import GroupOffer, route_of, served, waits_in_little

log = logging.getLogger("gravac.agent")
_FAILED = "compressing bucket %d failed; this rank sends zeros of it in this step"


@dataclass(slots=True)
class SentRoundedGroup:
    """The messages of a group in flight."""

    work: Work
    """The last collective so far."""
    buffers: rounded.RoundedGroup
    members: list[rounded.Member]
    keys: list[Key]
    ends: Communicator
    wait: Callable[[Work], None]
    halfway: bool
    """Whether ``pass_on`` has to send the means of this rank's shards."""
    decoded: bool = False

    def pass_on(self) -> None:
        """Average this rank's shards, and send the means to all. The stream waits for what the ranks have of them.

        Raises:
            Exception: A collective raised it.
        """
        self.halfway = False
        self.wait(self.work)
        rank = self.ends.rank
        rounded.average(
            self.buffers,
            self.members,
            [
                _seed(one.buffers, owner_key(key, rank))
                for one, key in zip(self.members, self.keys, strict=True)
            ],
        )
        self.fly(self.ends.gather(self.buffers.arrived.view(-1), self.buffers.mean.view(-1)))

    def fly(self, work: Work) -> None:
        """Take note of the collective that was issued last."""
        self.work = work
        for one in self.members:
            one.buffers.in_flight = work

    def decode(self, counts: Tensor) -> None:
        """Write the means of all buckets, or undo the step. Again, it does nothing."""
        if not self.decoded:
            rounded.decode(self.buffers, self.members, counts)
            self.decoded = True


@dataclass(slots=True)
class SentRounded:
    """A bucket's part of messages in flight."""

    group: SentRoundedGroup
    member: rounded.Member
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
        self.member.buffers.in_flight = None
        if self.member.undone:
            self.part.resolved_by_device()
        else:
            self.part.resolve(self.member.g, counts)  # what failed half way is lost, and said to be

    def undo(self) -> None:
        """Undo the bucket's part of a backward that does not end."""
        if self.member.undone:
            rounded.undo(self.group.buffers, self.member)
            self.part.resolved_by_device()
        else:
            self.part.resolve(self.member.g, False)


class RoundedMessages:
    """Makes the messages of a rank's buckets.

    Args:
        channels: The rank's.
        able: Whether compiled kernels run where the gradients are, on all ranks.
        wait: Lets the current stream wait for a collective.
    """

    def __init__(self, channels: Channels, able: bool, wait: Callable[[Work], None]) -> None:
        self._channels, self._able, self._wait = channels, able, wait

    def layout(
        self, channel: BucketChannel, plan: StepPlan, gradient: Tensor
    ) -> rounded.RoundedLayout | None:
        """Return the layout of a bucket's messages in this step; None: it is sent otherwise. Equal on all ranks."""
        route = route_of(self._channels, channel, plan, gradient) if self._able else None
        rounding = None if route is None else route.codec.message_rounding(plan.cf, gradient.dtype)
        if route is None or rounding is None or not served(self._channels):
            return None
        sender, numel = route.sender(plan.cf, gradient.dtype), gradient.numel()
        shards = isinstance(sender, CompressedAllReduce)
        if not (shards or isinstance(sender, Gather)) or numel > rounded.MOST_ELEMENTS:
            return None
        known = channel.rounded
        if known is not None and known.layout.matches(numel, shards, rounding):
            return known.layout
        layout = rounded.RoundedLayout(numel, sender.world_size, shards, rounding)
        return layout if shards or waits_in_little(layout, layout.ranks) else None

    def send(
        self,
        plan: StepPlan,
        offers: Sequence[GroupOffer],
        sums: StepSums,
        survey: Survey,
        row: Callable[[int], Tensor],
        key: Callable[[int], Key],
    ) -> list[SentRounded]:
        """Encode a group and issue its first collective. What fails before that sends zeros instead.

        Args:
            plan: Plan of the step.
            offers: One or more, at most ``MEMBERS``, with layouts of ``layout(…)``. Gradients stay unchanged.
            sums: Flags of the step.
            survey: Survey of the step.
            row: Returns what receives the sums of a bucket, by its number.
            key: Returns the seed of the random numbers of this step, bucket and rank, by the bucket's number.

        Raises:
            Exception: The collective raised it.
        """
        ends = self._channels.aggregators[plan.codec].communicator
        group = self._group_of(offers, ends.rank)
        numbers = [offer.channel.bucket.number for offer in offers]
        keys, members, ready = [key(number) for number in numbers], list[rounded.Member](), list[int]()
        for place, (offer, number) in enumerate(zip(offers, numbers, strict=True)):
            member, failed = self._prepare(plan, offer, survey, row(number))
            members.append(member)
            if failed:
                self._note_failure(offer, member, sums)
            else:
                ready.append(place)
        try:
            seeds = [_seed(members[place].buffers, keys[place]) for place in ready]
            rounded.encode(group, [members[place] for place in ready], seeds)
            for place in ready:
                part = offers[place].channel.memory
                assert isinstance(part, ResidualPart)
                members[place] = members[place]._replace(undone=part.sent_by_device())
                offers[place].channel.failures = 0
        except Exception:
            for place in ready:
                log.exception(_FAILED, numbers[place])
                self._note_failure(offers[place], members[place], sums)
        layout, message = members[0].buffers.layout, group.message.view(-1)
        work = (
            ends.exchange(group.parts.view(-1), message)
            if layout.shards
            else ends.gather(group.arrived.view(-1), message)
        )
        sent = SentRoundedGroup(work, group, members, keys, ends, self._wait, layout.shards)
        sent.fly(work)
        link_bytes, found = sum(one.buffers.layout.link_bytes for one in members), []
        for offer, member in zip(offers, members, strict=True):
            part, last = offer.channel.memory, member is members[-1]
            assert isinstance(part, ResidualPart)
            payload_bytes = member.buffers.layout.payload_bytes
            found.append(SentRounded(sent, member, part, payload_bytes, link_bytes if last else 0))
        return found

    def _prepare(
        self, plan: StepPlan, offer: GroupOffer, survey: Survey, row: Tensor
    ) -> tuple[rounded.Member, bool]:
        """Return a bucket's tensors of the step, and whether it failed: then zeros are sent of it."""
        channel, gradient, buffers, out = offer.channel, offer.gradient, offer.channel.rounded, offer.out
        part = channel.memory
        assert buffers is not None
        assert isinstance(part, ResidualPart)
        terms: PendingSum | None = None
        try:
            channel.begin_message(plan, gradient)
            terms = part.pending_sum(gradient)
            assert terms is not None
            residual, _, p = terms
            if survey.wanted:
                survey.add(kernels.tally(gradient, residual, out=torch.empty_like(p)))
            return rounded.Member(buffers, gradient, residual, p, row, out, False), False
        except Exception:
            log.exception(_FAILED, channel.bucket.number)
        if terms is None:
            nothing = torch.zeros(gradient.numel(), dtype=torch.float32, device=gradient.device)
            return rounded.Member(buffers, gradient, None, nothing, row, out, False), True
        terms.write(gradient, only_finite=True)  # all of it waits
        undone = part.sent_by_device()
        return rounded.Member(buffers, gradient, None, terms.out, row, out, undone), True

    def _note_failure(self, offer: GroupOffer, member: rounded.Member, sums: StepSums) -> None:
        sums.failed = 1.0
        offer.channel.failures += 1
        member.buffers.message.zero_()

    def _group_of(self, offers: Sequence[GroupOffer], rank: int) -> rounded.RoundedGroup:
        """Return the buffers of a group, made when its buckets or their layouts are others than before."""
        members = []
        for channel, layout, gradient, _ in offers:
            assert isinstance(layout, rounded.RoundedLayout)
            buffers = channel.rounded
            if buffers is not None and buffers.in_flight is not None:  # a backward did not end
                self._wait(buffers.in_flight)
            if buffers is None or buffers.layout is not layout:
                buffers = channel.rounded = rounded.RoundedBuffers(layout, rank, gradient.device)
            members.append(buffers)
        group = offers[0].channel.rounded_group
        if group is None or group.members != tuple(members):
            for offer in offers:
                offer.channel.rounded_group = None  # of a group that began with this bucket
            group = offers[0].channel.rounded_group = rounded.RoundedGroup(members)
        return group


def _seed(buffers: rounded.RoundedBuffers, key: Key) -> int:
    """Return the seed of a bucket's random numbers; 0 where it needs none, as that takes the host a while."""
    return key.own_seed() if buffers.layout.rounding is rounded.RANDOM else 0
