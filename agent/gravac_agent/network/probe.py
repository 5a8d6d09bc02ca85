"""The network between the ranks: measured before the first step, so that ``auto`` can choose a collective for it."""

import logging
import time
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gravac import aggregators
from gravac.aggregators import Aggregator, OneShot
from gravac.collectives import AUTO, Communicator, Network, ProcessGroupCommunicator
from gravac.collectives.cost import RING_RANKS, depth
from gravac_agent.network.doubling import Doubling
from gravac_agent.network.link import Link

log = logging.getLogger("gravac.agent")

LONG_ENOUGH = 0.02
"""Seconds of a transfer that is long enough: no larger one is tried."""
AGREE, MOST_CHECKS = 1.25, 6
"""The last two long transfers agree if their rates differ by less than this factor. If none of so many do, the
second best counts."""
LEAST_BYTES = 8 << 10
MOST_BYTES = 8 << 20
"""Bytes that a rank puts on its link in the smallest and the largest transfer."""


class Seconds(NamedTuple):
    """How long messages took, on the slowest rank of all.

    Attributes:
        own: Seconds of a rank's own messages.
        together: Seconds in which all rings sent theirs: from when the first rank began until each one knew that the
            last had ended. Of one ring, the same as ``own``.
    """

    own: float
    together: float


class Ring:
    """Ranks that each send to the next one, all at once, and receive from the one before.

    Args:
        group: The ranks; nothing else may use it meanwhile.
        device: Device of the tensors that it sends; None: the host's memory.
        everyone: The ranks of all rings that send at once, such as those that share a host's link: they begin when all
            of them have sent what came before. Where more ranks than cores share a host, some have ended when others
            begin, so that no rank's own time is that of the link. None: there is one ring.

    Attributes:
        hops: Messages after each other: ⌈log2 n⌉ of n ranks, so that a start with many ranks takes few. Of up to
            ``RING_RANKS``, and on a device, they are the n-1 of an all-gather.

    Raises:
        ValueError: There is one rank.
    """

    def __init__(
        self,
        group: ProcessGroupCommunicator,
        device: torch.device | None = None,
        everyone: Communicator | None = None,
    ) -> None:
        if group.size < 2:
            raise ValueError("a network needs at least 2 ranks")
        self._group, self._everyone = group, everyone
        self._device = torch.device("cpu") if device is None else device
        self._passes_on = self._device.type == "cpu" and group.size > RING_RANKS
        self.hops = depth(group.size) if self._passes_on else group.size - 1

    def seconds(self, nbytes: int) -> Seconds:
        """Send ``hops`` messages of ``nbytes`` from each rank, and return how long that took."""
        first = time.monotonic()  # all are here, since the last one agreed on its time
        mine = torch.zeros(nbytes, dtype=torch.uint8, device=self._device)
        came = torch.empty(
            nbytes * (1 if self._passes_on else self._group.size), dtype=torch.uint8, device=self._device
        )
        began = time.monotonic()
        if self._passes_on:
            for _ in range(self.hops):
                self._pass_on(mine, came)
        else:
            self._group.gather(came, mine).wait()
            came[:1].tolist()  # ``wait`` only orders the device's streams
        own = self._slowest(time.monotonic() - began)  # so all ranks go on with the same message
        if self._everyone is None:
            return Seconds(own, own)
        return Seconds(own, self._slowest(time.monotonic() - first))

    def _slowest(self, seconds: float) -> float:
        """Return the most seconds of any rank, once all of them have asked."""
        device = self._device if self._everyone is None else torch.device("cpu")
        most = torch.tensor([seconds], dtype=torch.float64, device=device)
        (self._everyone or self._group).maximum(most).wait()
        return float(most)

    def _pass_on(self, mine: Tensor, came: Tensor) -> None:
        group, rank, size = self._group.group, self._group.rank, self._group.size
        arrived = dist.irecv(came, group=group, group_src=(rank - 1) % size)
        sent = dist.isend(mine, group=group, group_dst=(rank + 1) % size)
        assert sent is not None  # None: this rank is not in the group
        assert arrived is not None
        arrived.wait()
        sent.wait()


def measure(ring: Ring) -> Network:
    """Measure latency α and bandwidth β of a ring's links. All ranks call it and get the same result.

    m empty messages cost m α, and those of S bytes m (α + S/β). β is the rate that the link keeps up: messages double,
    right after each other, until they take long enough, and more of that length follow until the last two agree. So
    what a token bucket lets through at once, before or within the first long one, does not count. A bucket that no
    message empties is not seen: of 16 MB, or of less on a fast link.

    Takes up to 0.3 s, and longer where latency alone takes longer, where more rings than cores wait for each other, or
    where a slow link has a bucket: as long as that link takes for the message that empties it, which is no larger than
    the bucket.

    Args:
        ring: The ranks, and where they send from.

    Returns:
        α in seconds and β in bytes per second, of the slowest rank of all.
    """
    once, hops = ring.seconds, ring.hops
    once(1)  # the first transfer opens connections
    empties = [once(1) for _ in range(2)]  # one may be slow as the machine is busy
    if min(empties).own < LONG_ENOUGH:
        empties += [once(1) for _ in range(6)]
    latency, empty = min(empties).own, min(one.together for one in empties)
    # In less time, latency would hide the bandwidth. Of what rings wait for each other, some passes while others send.
    # So it is not subtracted, and a transfer is so long that the link seems slower by a quarter at most.
    enough = max(LONG_ENOUGH, 2 * latency + 4 * (empty - latency))
    times, least = (4, 2) if empty > LONG_ENOUGH else (2, 3)  # where latency is long, so are many messages

    nbytes, rates = LEAST_BYTES, [0.0]  # of long ones in a row
    while len(rates) <= MOST_CHECKS:
        own, together = once(-(-nbytes // hops))
        if together < enough and nbytes < MOST_BYTES:  # also after one that was long as the machine was busy
            nbytes, rates = min(MOST_BYTES, nbytes * times), [0.0]
            continue
        # A link that carries the most in so little time is no slower for those who wait.
        seconds = own if together < enough else together
        rates.append(nbytes / max(seconds - latency, seconds / 10))
        if len(rates) > least and max(rates[-2:]) < AGREE * min(rates[-2:]):
            break
        if seconds > 4 * enough:  # a bucket may be empty now
            nbytes = max(LEAST_BYTES, min(nbytes, int(1.25 * enough * rates[-1])))
    bandwidth = max(rates[-2:])  # the machine may have been busy in the other one
    if bandwidth >= AGREE * min(rates[-2:]):
        # It was in several. While none sent, a bucket may have filled, so that the quickest was too quick.
        bandwidth = sorted(rates[2:])[-2]
    return Network(latency_seconds=_rounded(latency / hops), bytes_per_second=_rounded(bandwidth))


def _rounded(value: float) -> float:
    """Round to two digits: the measurement has no more, and the journal stays readable."""
    return float(f"{value:.2g}")


@dataclass(slots=True)
class AggregatorBuilder:
    """Builds aggregators for this job's network. Equal on all ranks, and part of what they agree on.

    Attributes:
        collective: The collective of the settings; ``auto`` chooses one.
        link: Emulated link; None on the real network.
        network: Latency and bandwidth; None until they are measured.
        elements: Elements of the whole model.
        sharded: Whether each rank gets a shard of the mean only, as under FSDP2.
        everyone: Ranks that measure in groups of their own at once; None: they are one group.
        device: Device on which the gradients are. Ranks may have different ones.
        ranks_per_link: Ranks of a group that share a host's link to the others.
        aged: Whether every optimizer is of ``gravac.optim``, with a usual β₁, for which ``auto`` may choose ``owners``.
    """

    collective: str
    link: Link | None
    network: Network | None = None
    elements: int | None = None
    sharded: bool = False
    everyone: dist.ProcessGroup | None = field(default=None, repr=False)
    device: torch.device = field(default=torch.device("cpu"), repr=False)
    ranks_per_link: int = 1
    aged: bool = False

    def build(self, compressor: str, group: ProcessGroupCommunicator) -> Aggregator:
        """Build an aggregator, without communication. Raises ValueError for an unknown or impossible one."""
        if self.sharded:
            return aggregators.build_sharded(compressor, group, self.elements)
        return aggregators.build(compressor, group, self.collective, self.network, self.elements, self.aged)

    def fit(self, aggregator: Aggregator, group: ProcessGroupCommunicator) -> None:
        """Let the aggregator choose its collective by the network, if that depends on it. All ranks call it.

        Args:
            aggregator: Learns the network.
            group: The aggregator's; nothing else may use it meanwhile.
        """
        if (
            not isinstance(aggregator, OneShot)
            or self.collective != AUTO
            or aggregator.compressor.traits.linear
        ):
            return
        if group.size > 2:  # 2 ranks always gather
            aggregator.use(self.measured(group))

    def measured(self, group: ProcessGroupCommunicator) -> Network:
        """Return the network, measured the first time, or the emulated link. All ranks call it.

        Args:
            group: At least 2 ranks; nothing else may use it meanwhile.
        """
        if self.network is None:
            self.network = (
                self._measure(group)
                if self.link is None
                else Network(
                    latency_seconds=self.link.latency_seconds, bytes_per_second=self.link.bits_per_second / 8
                )
            )
            log.info("collectives and plans are chosen for %s", self.network)
        return self.network

    def _measure(self, group: ProcessGroupCommunicator) -> Network:
        # Not by the metered one: this is no time of a step.
        everyone = None if self.everyone is None else Doubling(self.everyone)
        ring = Ring(ProcessGroupCommunicator(group.group, self.device.type), self.device, everyone)
        return replace(measure(ring), ranks_per_link=self.ranks_per_link)
