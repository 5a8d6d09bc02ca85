"""Step times of a job of which no trace exists, from what coding and handling cost on one core of an AMD EPYC, or on a
GPU where that was measured once.

The formula is that of ``gravac.predict.timemodel``. Coding has the terms by which the auto policy predicts plans that
it has not tried (``gravac.offers``): a quantizer touches every element of every payload, a selector those that it kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gravac import offers
from gravac.codec_text import selector_of
from gravac.collectives import AUTO, Network
from gravac.offers import MEMORY_NS, pass_ns
from gravac.policies.base import Plan
from gravac.predict.exchange import VALUE_BYTES, UnknownSizes, Volume, buckets, volume, volume_of_rounds
from gravac.predict.terms import HANDLING_SECONDS_PER_BYTE
from gravac.predict.timemodel import StepTime, TimeModel, coded
from gravac.wording import format_number, format_seconds

HIDDEN_RATIO = 0.3
"""Share of the computation of a step behind which transfers hide: buckets are sent while backward goes on."""
LAST_RATIO = 0.3
"""The last bucket's share of a transfer. It hides behind nothing."""
LATENCY_SECONDS = 2e-4
"""Latency of a message between two hosts, where it is not given."""


@dataclass(frozen=True, slots=True)
class NominalJob:
    """Predicts the steps of a job that was never run.

    Attributes:
        elements: Elements of the gradient.
        ranks: World size.
        compute_seconds: Forward, backward and optimizer of a rank, without any exchange.
        collective: Name of the job's collective; auto: chosen by the cost model.
        coding: Seconds of encoding and decoding by plan, where they were measured; others take what they do on one core
            of an AMD EPYC.
        aged: Whether every optimizer is of ``gravac.optim``, as ``JobSpec.aged``.
    """

    elements: int
    ranks: int
    compute_seconds: float
    collective: str = AUTO
    coding: Mapping[Plan, float] = field(default_factory=dict, hash=False)
    aged: bool = False

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
            compressor: Codec or aggregator; does not count where ``cf`` is 1.
            cf: Compression factor; 1: dense.
            network: Network between the ranks.
            payload_bytes: Bytes handed to collectives, for an aggregator with several rounds, whose sizes the cost
                model does not know. None: dense bytes / CF.
            exchange: The exchange of a step, where it is known; None: by the cost model.

        Raises:
            ValueError: ``compressor`` is unknown.
        """
        if exchange is None:
            exchange = self.volume(compressor, cf, network, payload_bytes)
        count, (encode_pass, decode_passes) = (
            coded(self.elements, cf),
            pass_ns(compressor, cf, exchange.decoded),
        )
        encode, decode = offers.of(selector_of(compressor)).kept_ns
        compress = (self.elements * (MEMORY_NS + encode_pass) + count * encode) * 1e-9
        decompress = (self.elements * decode_passes + exchange.decoded * count * decode) * 1e-9
        if (measured := self.coding.get(Plan(compressor, cf))) is not None:
            whole = compress + decompress
            compress, decompress = measured * compress / whole, measured * decompress / whole
        model = TimeModel(
            elements=self.elements,
            compute_seconds=self.compute_seconds,
            compress_seconds=compress,
            compress_seconds_per_coded=0.0,
            decompress_seconds_per_coded=0.0,
            waiting_seconds=0.0,
            handling_seconds_per_byte=HANDLING_SECONDS_PER_BYTE,
            last_ratio=LAST_RATIO,
            hidden_seconds=HIDDEN_RATIO * self.compute_seconds,
        )
        found = model.step(cf, exchange, network)
        return found if cf == 1.0 else replace(found, decompress=decompress)

    def volume(
        self, compressor: str, cf: float, network: Network, payload_bytes: float | None = None
    ) -> Volume:
        """Return the exchange of a step by the cost model; arguments and errors are those of ``step``."""
        try:
            return volume(compressor, self.elements, cf, self.ranks, network, self.collective, self.aged)
        except UnknownSizes:
            nbytes = VALUE_BYTES * self.elements / cf if payload_bytes is None else payload_bytes
            return volume_of_rounds(nbytes, self.ranks)


def link(bits_per_second: float, latency_seconds: float = LATENCY_SECONDS) -> Network:
    """Return the network of hosts with links of this nominal rate, of which TCP leaves ``TCP_GOODPUT``."""
    return Network(latency_seconds=latency_seconds, bytes_per_second=bits_per_second / 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What one codec took on one GPU. Others were not measured there, and are taken to need as much.

    Attributes:
        codec: Codec that was measured, in words.
        device: Device in words.
        bytes_per_second: Bytes of gradients that are encoded a second.
        host_seconds: Time of the host to queue one bucket.
        source: Page that has the figures.
    """

    codec: str
    device: str
    bytes_per_second: float
    host_seconds: float
    source: str

    def seconds(self, elements: int, count: int | None = None) -> float:
        """Return what a step takes to encode, or the host to queue that, as both work at the same time.

        Args:
            elements: Elements of the gradient.
            count: Number of buckets; None: as DDP cuts by default.
        """
        count = len(buckets(elements)) if count is None else count
        return max(VALUE_BYTES * elements / self.bytes_per_second, count * self.host_seconds)

    @property
    def words(self) -> str:
        """The assumption as a sentence without its end."""
        return (
            f"codecs encode {format_number(self.bytes_per_second / 1e9)} GB/s, and the host needs "
            f"{format_seconds(self.host_seconds)} a bucket, as {self.codec} on {self.device} ({self.source})"
        )


PUBLISHED = {
    "h100": Published(
        codec="Top-k 1 %",
        device="an H100",
        bytes_per_second=9.5e10,  # 6,500,000 elements in 274 µs
        host_seconds=2.35e-3,
        source="docs/gpu-h100.md, 2026-11-26",
    )
}
"""What is known of GPUs, by a part of the name, in lower case, that CUDA gives such a device."""
