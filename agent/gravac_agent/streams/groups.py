"""Which buckets a device sends in messages of its own, and which of them together. Equal on all ranks."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from gravac.aggregators.oneshot import CodecBucket, OneShot
from gravac.kernels.device.owned import OwnedLayout
from gravac.kernels.device.rounded import RoundedLayout
from gravac.kernels.device.tiled import TiledLayout
from gravac.kernels.reference import MEMBERS
from gravac.memories.residual import ResidualPart
from gravac_agent.exchange.channel import BucketChannel
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.plan import StepPlan

GROUP_BYTES = 64 << 20
"""Gradients of a group at most, the last one's beside: more would begin to be sent late."""
_COPIES, _MORE = 2, 1 << 14
"""Messages of all ranks wait until the step's end, in as many copies of the gradient at most, and so many bytes."""


class GroupOffer(NamedTuple):
    """A bucket whose message waits for those of its group."""

    channel: BucketChannel
    layout: TiledLayout | OwnedLayout | RoundedLayout
    gradient: Tensor
    out: Tensor
    """Receives the mean; may be the gradient itself."""

    def joins(self, first: "GroupOffer") -> bool:
        """Return whether one launch can serve both."""
        return self.gradient.dtype == first.gradient.dtype and self._sent() == first._sent()

    def _sent(self) -> object:
        """Return how values are sent."""
        layout = self.layout
        if isinstance(layout, OwnedLayout):
            return layout.values, layout.tile
        return layout.values if isinstance(layout, TiledLayout) else (layout.rounding, layout.shards)


def is_full(offers: Sequence[GroupOffer]) -> bool:
    """Return whether a group is sent without waiting for more."""
    return len(offers) == MEMBERS or sum(one.gradient.nbytes for one in offers) >= GROUP_BYTES


def waits_in_little(layout: TiledLayout | OwnedLayout | RoundedLayout, ranks: int) -> bool:
    """Return whether the messages of all ranks may wait until the end of a step. Else a bucket goes without a group,
    and is decoded before.
    """
    return ranks * layout.nbytes <= _COPIES * 4 * layout.numel + _MORE


def served(channels: Channels) -> bool:
    """Return whether a rank's memory lets its device make messages."""
    memory = channels.memory
    return (
        memory.part is ResidualPart and memory.offered_share() == 1.0 and channels.unused_everywhere is None
    )


def route_of(
    channels: Channels, channel: BucketChannel, plan: StepPlan, gradient: Tensor
) -> CodecBucket | None:
    """Return what a plan's codec knows of a bucket; None if no device makes messages of such a bucket."""
    if plan.measured != (plan.cf,) or channel.dense or not channel.uses_memory:
        return None
    if gradient.is_sparse or not gradient.numel() or not gradient.is_contiguous():
        return None
    if not isinstance(channels.aggregators[plan.codec], OneShot):
        return None
    route = channel.route(plan)
    assert isinstance(route, CodecBucket)
    return route
