"""Step times of a simulated job: what a step takes on a network, by the time model of ``gravac.whatif``."""

from dataclasses import dataclass
from typing import Protocol

from gravac.collectives import Network
from gravac.whatif.exchange import UnknownSizes, Volume, volume, volume_of_rounds
from gravac.whatif.timemodel import TCP_GOODPUT, TimeModel
from gravac_agent.windows.meters import StepTimes

HIDDEN = 0.3
"""Share of the computation of a step during which transfers can hide: buckets are sent while backward goes on."""
LAST = 0.3
"""The last bucket's share of a transfer. It hides behind nothing."""
HANDLING_SECONDS_PER_BYTE = 5e-10
COMPRESS_SECONDS_PER_ELEMENT = 4e-9
COMPRESS_SECONDS_PER_CODED = 1e-8
DECOMPRESS_SECONDS_PER_CODED = 4e-9
"""Work of one core on a byte of the network and on an element, as in ``gravac.whatif.terms``."""


class Clock(Protocol):
    """Gives the duration of a step."""

    def times(self, step: int, compressor: str, cf: float, payload_bytes: int) -> StepTimes:
        """Return the times of a step.

        Args:
            step: Its number; a network may change during a job.
            compressor: What it sends with.
            cf: Compression factor asked for; 1: dense.
            payload_bytes: Handed to collectives by each rank.
        """
        ...


@dataclass(frozen=True, slots=True)
class Phase:
    """A network from one step on."""

    first_step: int
    network: Network


@dataclass(frozen=True, slots=True)
class ModelClock:
    """Step times on a network that may change at given steps.

    Args:
        elements: Of the gradient.
        ranks: World size.
        compute_seconds: Forward, backward and optimizer of a rank.
        phases: Networks by the step from which they hold; the first is 0.
    """

    elements: int
    ranks: int
    compute_seconds: float
    phases: tuple[Phase, ...]

    def network(self, step: int) -> Network:
        """Return the network of a step."""
        return [phase.network for phase in self.phases if phase.first_step <= step][-1]

    def times(self, step: int, compressor: str, cf: float, payload_bytes: int) -> StepTimes:
        network = self.network(step)
        times = self._model().step(cf, self.volume(compressor, cf, payload_bytes, network), network)
        return StepTimes(
            seconds=times.seconds,
            data_wait=0.0,
            compute=times.compute,
            compress=times.compress,
            communicate=times.exposed,
            decompress=times.decompress,
        )

    def volume(self, compressor: str, cf: float, payload_bytes: float, network: Network) -> Volume:
        """Return the exchange of a step."""
        try:
            return volume(compressor, self.elements, cf, self.ranks, network)
        except UnknownSizes:
            if cf == 1.0:
                return volume("dense", self.elements, cf, self.ranks, network)
            return volume_of_rounds(payload_bytes, self.ranks)

    def _model(self) -> TimeModel:
        return TimeModel(
            elements=self.elements,
            compute_seconds=self.compute_seconds,
            compress_seconds=self.elements * COMPRESS_SECONDS_PER_ELEMENT,
            compress_seconds_per_coded=COMPRESS_SECONDS_PER_CODED,
            decompress_seconds_per_coded=DECOMPRESS_SECONDS_PER_CODED,
            waiting_seconds=0.0,
            handling_seconds_per_byte=HANDLING_SECONDS_PER_BYTE,
            last_ratio=LAST,
            hidden_seconds=HIDDEN * self.compute_seconds,
        )


def link(bits_per_second: float, latency_seconds: float = 2e-4) -> Network:
    """Return a network of links of this rate; TCP leaves ``TCP_GOODPUT`` of it."""
    return Network(latency_seconds=latency_seconds, bytes_per_second=bits_per_second / 8 / TCP_GOODPUT)
