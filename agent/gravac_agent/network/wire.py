"""How this agent's payloads meet: the collective asked for, and the network by which ``auto`` chooses one."""

import logging
from dataclasses import dataclass

from gravac import aggregators
from gravac.aggregators import Aggregator, OneShot
from gravac.collectives import AUTO, Network, ProcessGroupCommunicator
from gravac_agent.network.link import Link
from gravac_agent.network.probe import measure

log = logging.getLogger("gravac.agent")


@dataclass(slots=True)
class Wire:
    """What aggregators are built with besides their text. The same on all ranks, part of what they agree on."""

    collective: str
    link: Link | None
    network: Network | None = None
    elements: int | None = None
    """Of the whole model."""

    def build(self, compressor: str, group: ProcessGroupCommunicator) -> Aggregator:
        """The aggregator, without talking. Raises ValueError for what cannot be."""
        return aggregators.build(compressor, group, self.collective, self.network, self.elements)

    def settle(self, aggregator: Aggregator, group: ProcessGroupCommunicator) -> None:
        """Find out about the network if that decides anything. All ranks call it; nothing else may use the group."""
        if (
            not isinstance(aggregator, OneShot)
            or self.collective != AUTO
            or aggregator.compressor.traits.linear
        ):
            return
        if group.size <= 2:  # a gather, whatever the network
            return
        if self.network is None:
            self.network = (
                measure(ProcessGroupCommunicator(group.group))  # unwatched: no time of any step
                if self.link is None
                else Network(
                    latency_seconds=self.link.latency_seconds, bytes_per_second=self.link.bits_per_second / 8
                )
            )
            log.info("collectives are chosen for %s", self.network)
        aggregator.use(self.network)
