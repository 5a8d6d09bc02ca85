"""The channels of a rank: one for each bucket, with one error memory and one set of codecs for all of them."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gravac.aggregators import Aggregator
from gravac.kernels import CandidateBuffers
from gravac.memories import Bucket, Memory
from gravac_agent.exchange.channel import BucketChannel, RankCodecs
from gravac_agent.exchange.failing_buckets import FailingBuckets
from gravac_agent.exchange.plan import StepPlan

log = logging.getLogger("gravac.agent")


@dataclass
class Channels(RankCodecs):
    """Keeps the channels of a rank, and ends their steps together."""

    def __post_init__(self) -> None:
        self._channels: list[BucketChannel | None] = []  # by the bucket's number
        self.failing = FailingBuckets(self._channels)
        self._in_use = 0  # number of the running step's codec

    @property
    def compressor(self) -> str:
        """The job's compressor."""
        return self.codecs[0]

    @property
    def aggregator(self) -> Aggregator:
        """The aggregator of the job's compressor."""
        return self.aggregators[0]

    def __iter__(self) -> Iterator[BucketChannel]:
        return (channel for channel in self._channels if channel is not None)

    def begin(self, bucket: Bucket, plan: StepPlan) -> BucketChannel:
        """Return the channel of a bucket that is about to be encoded in a step with this plan."""
        self._in_use = plan.codec
        if bucket.number == 0 and self.unused_everywhere is not None:
            # A backward that ended in an exception has no end of step, which would have dropped what was withheld in
            # it. This step would add to that.
            self.rollback()
        return self.channel(bucket)

    def channel(self, bucket: Bucket) -> BucketChannel:
        """Return the channel of a bucket. A bucket of other parameters under the same number gets a new one."""
        number, channels = bucket.number, self._channels
        channel = channels[number] if number < len(channels) else None
        if channel is not None and (channel.bucket is bucket or channel.bucket.names == bucket.names):
            channel.bucket = bucket
            return channel
        names = set(bucket.names)
        for at, other in enumerate(channels):
            if other is not None and not names.isdisjoint(other.bucket.names):
                # The trainer has regrouped its buckets. They may be smaller now, and the old room would never be freed.
                channels[at], self.candidates = None, CandidateBuffers()
        channels += [None] * (number + 1 - len(channels))
        channel = channels[number] = BucketChannel(bucket, self)
        return channel

    def change(self, memory: Memory, codecs: Sequence[str], aggregators: Sequence[Aggregator]) -> None:
        """Replace the memory, the codecs and their aggregators, on all ranks between steps.

        Buckets that were sent densely, because they failed, are tried again.
        """
        if memory is not self.memory:
            self.memory.parts.clear()  # which refer to it, so that its residual would stay until a garbage collection
        self.memory, self.codecs, self.aggregators = memory, tuple(codecs), tuple(aggregators)
        self._channels.clear()

    def close(self) -> None:
        """Forget all buckets. Channels refer to the process groups, which would stay until a garbage collection."""
        self._channels.clear()

    def learning_codecs(self) -> frozenset[int]:
        """Return the numbers of the codecs that must learn from a dense step before they send at a new CF."""
        return frozenset(
            number for number, aggregator in enumerate(self.aggregators) if aggregator.local_statistics()
        )

    def give_up_memory(self, channel: BucketChannel) -> None:
        """Drop what the memory holds of a bucket on which it keeps failing. Call it on the exchange thread."""
        channel.uses_memory = False
        self.note(
            f"The error memory keeps failing on {channel.label}: their residual is lost, and from now on their "
            "gradients are sent as plain DDP sends them."
        )
        try:
            self.memory.forget(channel.bucket.names)
        except Exception:
            log.exception("memory %s cannot forget %s", self.memory.spec, channel.label)

    def commit(self) -> None:
        """Make the step's residuals and learned state permanent."""
        if self.unused_everywhere is not None:
            noisy = [channel for channel in self if channel.noise is not None]
            lost = self.unused_everywhere() if noisy else frozenset()
            for channel in noisy:
                channel.keep_noise(lost)
        self.memory.commit()
        if (aggregator := self.aggregators[self._in_use]).learns:
            aggregator.commit()

    def rollback(self) -> None:
        """Drop the step's residuals and learned state."""
        for channel in self:
            channel.noise = None
        self.memory.rollback()
        self.aggregators[self._in_use].rollback()

    def expect_drops(self) -> None:
        """Keep a draft of each residual from the next step on, so that a step can be undone after it was applied."""
        if self.gradients_stay:
            self.gradients_stay = False
            self.note(
                "Gradients were exchanged, and no optimizer stepped by them. From now on the agent checks, by sums of "
                "the parameters, whether such gradients change them for good. If not, they leave no residual; the "
                "error memory keeps a second buffer for that. The residual of this step stays in the error memory."
            )
