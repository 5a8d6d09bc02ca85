"""What a step takes, as a formula: own work by CF, and an exchange of which part hides behind backward. Pure.

    step = compute + compressing + coding · coded + exposed
    exposed = waiting + max(last · T, T - hidden),  T = messages · α + link bytes · (1/(goodput · β) + handling)

``coded`` = elements / CF^0.75; α and β: latency and bandwidth of a rank's link. A first part of T can run beside
backward (``hidden`` seconds at most) and beside the encoding of later buckets; the last bucket's share of T
(``last``) cannot, as it comes when both are over.
"""

from dataclasses import dataclass

from gravac.collectives import Network
from gravac.whatif.exchange import Volume

TCP_GOODPUT = 0.956
"""Share of a link's bits that are payload: 1448 of the 1514 bytes of a full Ethernet frame with TCP/IP."""
CODING_POWER = 0.75
"""How coding beyond the passes over all elements goes with CF. Each element kept costs less where more are: positions
are closer, branches go as often one way as the other. Of Top-k on one core, CF 2 to 1000: 0.7 to 0.8, both ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The parts of one step, seconds; they add up to ``seconds``, which is never 0."""

    compute: float
    compress: float
    exposed: float
    decompress: float

    @property
    def seconds(self) -> float:
        return max(1e-9, self.compute + self.compress + self.exposed + self.decompress)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeModel:
    """The terms. All seconds; ``_per_`` says of what. Fitted by ``gravac.whatif.fit``."""

    elements: int
    compute_seconds: float
    compress_seconds: float
    """Of a compressed step, whatever its CF: the passes over the whole gradient."""
    compress_seconds_per_coded: float
    decompress_seconds_per_coded: float
    """For each of ``coded``, a payload decoded: with n ranks a gather decodes n."""
    waiting_seconds: float
    """What every step waits in the exchange: for slower ranks, and for the tick."""
    goodput_ratio: float = TCP_GOODPUT
    """Share of a link's bits that are payload: less than headers leave, where packets are lost and sent again."""
    handling_seconds_per_byte: float
    """Work of a rank's core for each byte on its link."""
    last_ratio: float
    hidden_seconds: float

    def transfer_seconds(self, volume: Volume, network: Network) -> float:
        """T: what the exchange takes if nothing hides."""
        byte = 1.0 / (self.goodput_ratio * network.bytes_per_second) + self.handling_seconds_per_byte
        return volume.messages * network.latency_seconds + volume.link_bytes * byte

    def step(self, cf: float, volume: Volume, network: Network) -> StepTime:
        """A step of ``volume`` on ``network``; ``cf`` 1: nothing is compressed."""
        count = coded(self.elements, cf)
        compress = 0.0 if cf == 1.0 else self.compress_seconds + count * self.compress_seconds_per_coded
        took = self.transfer_seconds(volume, network)
        hidden = self.hidden_seconds + (1 - self.last_ratio) * compress
        return StepTime(
            compute=self.compute_seconds,
            compress=compress,
            exposed=self.waiting_seconds + max(self.last_ratio * took, took - hidden),
            decompress=count * volume.decoded * self.decompress_seconds_per_coded,
        )


def coded(elements: int, cf: float) -> float:
    """Elements that coding counts at ``cf``; none where nothing is compressed."""
    return 0.0 if cf == 1.0 else elements * cf**-CODING_POWER
