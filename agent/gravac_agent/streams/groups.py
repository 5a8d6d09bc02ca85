"""Which buckets a device sends together: a few share each launch and the collectives. Equal on all ranks."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from gravac.kernels.device.groups import MEMBERS
from gravac.kernels.device.rounded import RoundedLayout
from gravac.kernels.device.tiled import TiledLayout
from gravac_agent.exchange.channel import BucketChannel

GROUP_BYTES = 64 << 20
"""Gradients of a group at most, the last one's beside: more would begin to be sent late."""


class Offer(NamedTuple):
    """A bucket whose message waits for those of its group."""

    channel: BucketChannel
    layout: TiledLayout | RoundedLayout
    gradient: Tensor
    out: Tensor
    """Receives the mean; may be the gradient itself."""

    def joins(self, first: "Offer") -> bool:
        """Return whether one launch can serve both."""
        return self.gradient.dtype == first.gradient.dtype and self._sent() == first._sent()

    def _sent(self) -> object:
        """Return how values are sent."""
        layout = self.layout
        return layout.values if isinstance(layout, TiledLayout) else (layout.rounding, layout.shards)


def is_full(offers: Sequence[Offer]) -> bool:
    """Return whether a group is sent without waiting for more."""
    return len(offers) == MEMBERS or sum(one.gradient.nbytes for one in offers) >= GROUP_BYTES
