"""How many messages and bytes a step's exchange takes, by codec, CF and number of ranks: what the cost model says."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

from gravac import aggregators, compressors
from gravac.aggregators import AGGREGATORS
from gravac.collectives import COLLECTIVES, AllReduce, Gather, Network, Workload, choose
from gravac.collectives.communicator import ALONE
from gravac.compressors import Compressor, Dense

FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
"""What DDP puts into a bucket by default. A trace does not say what the job chose."""
VALUE_BYTES = 4
TICK_ROUNDS = 2
"""The tick is a ring all-reduce of one small message: 2 (n-1) messages a step."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A step's exchange on one rank. ``link_bytes``: put on its link; ``payload_bytes``: handed to collectives.
    ``way``: the collective of the largest bucket. ``decoded``: payloads that a rank decodes."""

    messages: float
    link_bytes: float
    payload_bytes: float
    way: str
    decoded: int


class UnknownSizes(ValueError):
    """What an aggregator of several rounds sends follows from the shapes of the parameters, which no trace has."""


def codec_of(text: str) -> Compressor | None:
    """The codec; None for an aggregator of several rounds. Raises ValueError for a name that there is not."""
    aggregators.parse(text)
    return None if text.partition(":")[0] in AGGREGATORS else compressors.build(text)


def keeps_largest(text: str) -> bool:
    """Whether it sends the largest elements, so that curves of gain against CF are its own."""
    codec = codec_of(text)
    return codec is not None and bool(codec.uses_histogram)


def volume(compressor: str, elements: int, cf: float, ranks: int, network: Network) -> Volume:
    """The exchange of a gradient; ``cf`` 1: dense, all-reduced. Raises UnknownSizes."""
    return _volume(compressor, elements, cf, ranks, network)


def rounds(payload_bytes: float, ranks: int) -> Volume:
    """An aggregator's own rounds, as if two rings all-reduced so many bytes together."""
    messages = 2.0 * 2 * (ranks - 1) + TICK_ROUNDS * (ranks - 1)
    return Volume(messages, 2 * (ranks - 1) / ranks * payload_bytes, payload_bytes, "rounds", 1)


@lru_cache(maxsize=4096)
def _volume(compressor: str, elements: int, cf: float, ranks: int, network: Network) -> Volume:
    codec = Dense() if cf == 1.0 else codec_of(compressor)
    if codec is None:
        raise UnknownSizes(
            f"compressor={compressor!r} sends what follows from the shapes of the parameters, which no trace holds"
        )
    messages = TICK_ROUNDS * (ranks - 1.0) if ranks > 1 else 0.0
    link = payload = 0.0
    way = AllReduce.name
    for numel in buckets(elements):
        load = Workload(codec, numel, cf, torch.float32, ranks)
        way = _way(load, network)
        kind = COLLECTIVES[way](ALONE)
        rounds, nbytes = _linear(lambda at, load=load, kind=kind: kind.seconds(at, load))  # type: ignore[misc]
        messages, link, payload = messages + rounds, link + nbytes, payload + kind.payload_bytes(load)
    return Volume(messages, link, payload, way, ranks if way == Gather.name else 1)


def _way(load: Workload, network: Network) -> str:
    """As an agent with ``collective="auto"`` would take."""
    if load.codec.traits.linear:
        return AllReduce.name
    return Gather.name if load.ranks <= 2 else choose(network, load).name


def _linear(seconds: Callable[[Network], float]) -> tuple[float, float]:
    """Messages and bytes of a time that is messages · α + bytes / β + work."""
    nothing = seconds(Network(latency_seconds=0.0, bytes_per_second=1e30))
    return (
        seconds(Network(latency_seconds=1.0, bytes_per_second=1e30)) - nothing,
        seconds(Network(latency_seconds=0.0, bytes_per_second=1.0)) - nothing,
    )


def buckets(elements: int) -> tuple[int, ...]:
    """Elements of each bucket as DDP cuts by default: the first is small, so that sending begins early."""
    first, each = FIRST_BUCKET_BYTES // VALUE_BYTES, BUCKET_BYTES // VALUE_BYTES
    if elements <= first:
        return (max(1, elements),)
    whole, rest = divmod(elements - first, each)
    return (first, *[each] * whole, *([rest] if rest else []))
