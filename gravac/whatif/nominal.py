"""Step times of a job of which no trace exists, from what coding and handling cost on one core of an AMD EPYC.

The formula is that of ``gravac.whatif.timemodel``. Coding has the terms by which the auto policy predicts plans that it
has not tried (``gravac.offers``): a quantizer touches every element of every payload, a selector those
that it kept.
"""

from dataclasses import dataclass, replace

from gravac import offers
from gravac.collectives import AUTO, Network
from gravac.offers import MEMORY_NS, pass_ns
from gravac.whatif.exchange import VALUE_BYTES, UnknownSizes, Volume, volume, volume_of_rounds
from gravac.whatif.terms import HANDLING_SECONDS_PER_BYTE
from gravac.whatif.timemodel import StepTime, TimeModel, coded

HIDDEN_RATIO = 0.3
"""Share of the computation of a step behind which transfers hide: buckets are sent while backward goes on."""
LAST_RATIO = 0.3
"""The last bucket's share of a transfer. It hides behind nothing."""
LATENCY_SECONDS = 2e-4
"""Of a message between two hosts, where it is not given."""


@dataclass(frozen=True, slots=True)
class NominalJob:
    """Predicts the steps of a job that was never run.

    Attributes:
        elements: of the gradient.
        ranks: world size.
        compute_seconds: forward, backward and optimizer of a rank, without any exchange.
        collective: name of the job's collective; auto: chosen by the cost model.
    """

    elements: int
    ranks: int
    compute_seconds: float
    collective: str = AUTO

    def step(
        self,
        compressor: str,
        cf: float,
        network: Network,
        payload_bytes: float | None = None,
        exchange: Volume | None = None,
    ) -> StepTime:
        """Return the time of a step.

        Args:
            compressor: what it sends with; does not count where ``cf`` is 1.
            cf: compression factor; 1: dense.
            network: between the ranks.
            payload_bytes: handed to collectives, for an aggregator with several rounds, whose sizes the cost model does
                not know. None: dense bytes / CF.
            exchange: the exchange of a step, where it is known; None: by the cost model.

        Raises:
            ValueError: ``compressor`` is unknown.
        """
        if exchange is None:
            exchange = self.volume(compressor, cf, network, payload_bytes)
        count, (encode_pass, decode_passes) = (
            coded(self.elements, cf),
            pass_ns(compressor, cf, exchange.decoded),
        )
        encode, decode = offers.of(compressor.partition("+")[0]).kept_ns
        each = (MEMORY_NS + encode_pass) * 1e-9
        model = TimeModel(
            elements=self.elements,
            compute_seconds=self.compute_seconds,
            compress_seconds=self.elements * each,
            compress_seconds_per_coded=encode * 1e-9,
            decompress_seconds_per_coded=decode * 1e-9,
            waiting_seconds=0.0,
            handling_seconds_per_byte=HANDLING_SECONDS_PER_BYTE,
            last_ratio=LAST_RATIO,
            hidden_seconds=HIDDEN_RATIO * self.compute_seconds,
        )
        found = model.step(cf, exchange, network)
        if cf == 1.0:
            return found
        passes = self.elements * decode_passes + exchange.decoded * count * decode
        return replace(found, decompress=passes * 1e-9)

    def volume(
        self, compressor: str, cf: float, network: Network, payload_bytes: float | None = None
    ) -> Volume:
        """Return the exchange of a step by the cost model; arguments and errors are those of ``step``."""
        try:
            return volume(compressor, self.elements, cf, self.ranks, network, self.collective)
        except UnknownSizes:
            nbytes = VALUE_BYTES * self.elements / cf if payload_bytes is None else payload_bytes
            return volume_of_rounds(nbytes, self.ranks)


def link(bits_per_second: float, latency_seconds: float = LATENCY_SECONDS) -> Network:
    """Return the network of hosts with links of this nominal rate, of which TCP leaves ``TCP_GOODPUT``."""
    return Network(latency_seconds=latency_seconds, bytes_per_second=bits_per_second / 8)
