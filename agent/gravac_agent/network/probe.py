"""The network between the ranks: measured before the first step, so that ``auto`` can choose a collective for it."""

import logging
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from gravac import aggregators
from gravac.aggregators import Aggregator, OneShot
from gravac.collectives import AUTO, Communicator, Network, ProcessGroupCommunicator
from gravac_agent.network.link import Link

log = logging.getLogger("gravac.agent")

REPEATS = 3
LONG_ENOUGH = 0.02
"""Seconds of a transfer that is long enough: it is not repeated, and no larger one is tried."""
LEAST_BYTES = 8 << 10
MOST_BYTES = 8 << 20
"""Bytes that a rank puts on its link in the smallest and the largest transfer."""


def measure(communicator: Communicator, device: torch.device | None = None) -> Network:
    """Measure latency α and bandwidth β of ring all-gathers. All ranks call it and get the same result.

    With n ranks, an empty message costs (n-1) α and one of S bytes (n-1) (α + S/β). Takes up to 0.3 s, and longer only
    where latency alone takes longer.

    Args:
        communicator: The group of ranks; nothing else may use it meanwhile.
        device: Where the tensors are that it exchanges; None: in the host's memory.

    Returns:
        α in seconds and β in bytes per second, of the slowest rank.
    """
    others = communicator.size - 1
    if others < 1:
        raise ValueError("a network needs at least 2 ranks")
    device = torch.device("cpu") if device is None else device
    _seconds(communicator, 1, device)  # the first transfer opens connections
    empty = _seconds(communicator, 1, device)
    enough = max(LONG_ENOUGH, 2 * empty)  # in less time, latency would hide the bandwidth
    nbytes = LEAST_BYTES
    while (seconds := _seconds(communicator, -(-nbytes // others), device)) < enough and nbytes < MOST_BYTES:
        nbytes = min(MOST_BYTES, nbytes * (4 if seconds > 1.2 * empty else 32))
    latency, bandwidth = empty / others, nbytes / max(seconds - empty, seconds / 10)
    return Network(latency_seconds=_rounded(latency), bytes_per_second=_rounded(bandwidth))


def _seconds(communicator: Communicator, nbytes: int, device: torch.device) -> float:
    """Return the time of the fastest of a few all-gathers of ``nbytes`` a rank; the slowest rank's time counts."""
    mine = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    every = torch.empty(communicator.size * nbytes, dtype=torch.uint8, device=device)
    best = float("inf")
    for repeat in range(REPEATS):
        began = time.monotonic()
        communicator.gather(every, mine).wait()
        every[:1].tolist()  # on a device, ``wait`` only orders its streams
        seconds = torch.tensor([time.monotonic() - began], dtype=torch.float64, device=device)
        communicator.maximum(seconds).wait()  # so that all ranks stop after the same number of repeats
        best = min(best, float(seconds))
        if repeat and best > LONG_ENOUGH:  # a single one may be slow because the machine is busy
            break
    return best


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
        everyone: Ranks that measure in groups of their own, and agree on the slowest; None: they are one group.
        device: Where the gradients are. Ranks may have different ones.
    """

    collective: str
    link: Link | None
    network: Network | None = None
    elements: int | None = None
    sharded: bool = False
    everyone: dist.ProcessGroup | None = field(default=None, repr=False)
    device: torch.device = field(default=torch.device("cpu"), repr=False)

    def build(self, compressor: str, group: ProcessGroupCommunicator) -> Aggregator:
        """Build an aggregator, without communication. Raises ValueError for an unknown or impossible one."""
        if self.sharded:
            return aggregators.build_sharded(compressor, group, self.elements)
        return aggregators.build(compressor, group, self.collective, self.network, self.elements)

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
            aggregator.use(self.measured(group), sync_free=self.device.type != "cpu")

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
        found = measure(ProcessGroupCommunicator(group.group), self.device)
        if self.everyone is None:
            return found
        slowest = torch.tensor([found.latency_seconds, -found.bytes_per_second], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=self.everyone)
        latency, bandwidth = slowest.tolist()
        return Network(latency_seconds=latency, bytes_per_second=-bandwidth)
