"""Terms of a step's time: own work by CF, and an exchange that hides partly behind backward. Pure.

    step = compute + compressing + coding · coded + exposed
    exposed = waiting + max(last · T, T - hidden)               (``gravac.policies.windows``, for ``auto``, too)
    T = messages · α + bytes · (1/(goodput · β) + handling) + inside

T is the α-β model of communication (R. W. Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994)
with α and β as latency and bandwidth of a rank's link. ``coded`` = elements / CF^0.75. ``inside``: what ranks of a host
exchange first and last, where there are two levels of links.
"""

from dataclasses import dataclass

from gravac.collectives import Network
from gravac.policies.windows import exposed_seconds
from gravac.predict.exchange import Volume

TCP_GOODPUT = 0.956
"""Share of a link's bits that are payload: 1448 of 1514 bytes in a full Ethernet frame with TCP/IP."""
CODING_POWER = 0.75
"""Exponent of the CF in the cost of coding, apart from passes over all elements. Below 1, as an element costs less
where more are kept: positions are closer and cost less. Measured 0.7 to 0.8 for Top-k on one core, CF 2 to 1000, for
encoding and decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Parts of one step in seconds. They add up to ``seconds``, which is never 0.

    Attributes:
        compute: Forward, backward and optimizer.
        compress: Encoding.
        exposed: What the step waits for the exchange.
        decompress: Decoding.
    """

    compute: float
    compress: float
    exposed: float
    decompress: float

    @property
    def seconds(self) -> float:
        return max(1e-9, self.compute + self.compress + self.exposed + self.decompress)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeModel:
    """Terms of the formula, fitted by ``gravac.predict.fit``.

    Attributes:
        elements: Elements of the gradient.
        compute_seconds: Forward, backward, optimizer.
        compress_seconds: Time of a compressed step at any CF: passes over the whole gradient.
        compress_seconds_per_coded: Time for each of ``coded``.
        decompress_seconds_per_coded: Time for each of ``coded`` and payload; with n ranks a gather decodes n.
        waiting_seconds: Wait of every step in the exchange, for slower ranks and for the tick.
        goodput_ratio: Share of a link's bits that are payload; lower where packets are lost and sent again.
        handling_seconds_per_byte: Work of a core for each byte on its link.
        last_ratio: The last bucket's share of a transfer.
        hidden_seconds: Most of a transfer that overlaps with backward.
    """

    elements: int
    compute_seconds: float
    compress_seconds: float
    compress_seconds_per_coded: float
    decompress_seconds_per_coded: float
    waiting_seconds: float
    goodput_ratio: float = TCP_GOODPUT
    handling_seconds_per_byte: float
    last_ratio: float
    hidden_seconds: float

    def transfer_seconds(self, volume: Volume, network: Network) -> float:
        """Return T, the duration of the exchange without overlap."""
        byte = 1.0 / (self.goodput_ratio * network.bytes_per_second) + self.handling_seconds_per_byte
        return volume.messages * network.latency_seconds + volume.link_bytes * byte + volume.inside_seconds

    def step(self, cf: float, volume: Volume, network: Network) -> StepTime:
        """Return the time of a step with this exchange on ``network``; ``cf`` 1: nothing is compressed."""
        count = coded(self.elements, cf)
        compress = 0.0 if cf == 1.0 else self.compress_seconds + count * self.compress_seconds_per_coded
        transfer = self.transfer_seconds(volume, network)
        hidden = self.hidden_seconds + (1 - self.last_ratio) * compress
        return StepTime(
            compute=self.compute_seconds,
            compress=compress,
            exposed=self.waiting_seconds + exposed_seconds(transfer, hidden, self.last_ratio),
            decompress=count * volume.decoded * self.decompress_seconds_per_coded,
        )


def coded(elements: int, cf: float) -> float:
    """Return the elements that coding is charged for at ``cf``; 0 where nothing is compressed."""
    return 0.0 if cf == 1.0 else elements * cf**-CODING_POWER
