"""Volume of a step's exchange: messages and bytes by codec, CF and number of ranks, from the cost model."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from gravac import aggregators, compressors
from gravac.aggregators import AGGREGATORS
from gravac.codec_text import split_settings
from gravac.collectives import (
    AUTO,
    COLLECTIVES,
    AllReduce,
    Gather,
    Network,
    Workload,
    choose,
    crossing,
    scatter_bytes,
    small_sum_messages,
)
from gravac.collectives.communicator import ALONE
from gravac.collectives.messages import HEADER_BYTES
from gravac.compressors import Compressor, Dense
from gravac.compressors.base import Size

FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
"""DDP's default bucket sizes. A trace does not hold the job's own."""
VALUE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Volume:
    """A step's exchange on one rank.

    Attributes:
        messages: Messages sent one after the other.
        link_bytes: Bytes put on a network link, by all ranks that share it.
        payload_bytes: Bytes handed to collectives.
        collective: Name of the last bucket's collective.
        decoded: Payloads that the rank decodes.
        inside_seconds: Time in which the ranks of a host divide the gradient and put its mean together, where they do.
    """

    messages: float
    link_bytes: float
    payload_bytes: float
    collective: str
    decoded: int
    inside_seconds: float = 0.0


class UnknownSizes(ValueError):
    """The sizes of a multi-round aggregator depend on the shapes of the parameters, which a trace does not hold."""


def codec_of(text: str) -> Compressor | None:
    """Return the codec; None for a multi-round aggregator. Raises ValueError for an unknown name."""
    aggregators.parse(text)
    return None if split_settings(text)[0] in AGGREGATORS else compressors.build(text)


@lru_cache(maxsize=256)
def sizes_of(text: str) -> tuple[Size, ...]:
    """Return the CFs that a codec reaches if they are few; empty: any. Raises ValueError for an unknown name."""
    codec = codec_of(text)
    return () if codec is None else codec.sizes()


def reached(text: str, cf: float) -> float:
    """Return the CF that a codec sends where ``cf`` is asked for, as ``JobSpec.reached``."""
    sizes = sizes_of(text)
    return cf if cf == 1.0 or not sizes else next(size.cf for size in sizes if cf <= size.up_to)


def keeps_largest(text: str) -> bool:
    """Return whether a compressor sends the largest elements, so that measured gain curves are its own."""
    codec = codec_of(text)
    return codec is not None and bool(codec.uses_histogram)


def volume(
    compressor: str,
    elements: int,
    cf: float,
    ranks: int,
    network: Network,
    collective: str = AUTO,
    aged: bool = False,
) -> Volume:
    """Return the exchange of one gradient.

    Args:
        compressor: Name of a codec or aggregator, with its settings.
        elements: Elements of the gradient.
        cf: 1: dense, all-reduced.
        ranks: World size.
        network: Network by which the collective is chosen.
        collective: Name of the job's collective; auto: chosen.
        aged: Whether every optimizer is of ``gravac.optim``, as ``JobSpec.aged``.

    Raises:
        UnknownSizes: ``compressor`` is a multi-round aggregator.
        ValueError: ``compressor`` is unknown.
    """
    return _volume(compressor, elements, cf, ranks, network, collective, aged)


def volume_of_rounds(payload_bytes: float, ranks: int) -> Volume:
    """Return the exchange of a multi-round aggregator, taken as two ring all-reduces of ``payload_bytes`` in total."""
    messages = 2.0 * 2 * (ranks - 1) + small_sum_messages(ranks)  # the tick
    return Volume(messages, 2 * (ranks - 1) / ranks * payload_bytes, payload_bytes, "rounds", 1)


def volume_of_shards(
    compressor: str,
    elements: int,
    cf: float,
    ranks: int,
    calls: int,
    by_all_reduce: bool,
    ranks_per_link: int = 1,
) -> Volume:
    """Return the exchange of one gradient that FSDP2 shards: a compressed reduce-scatter for each of its modules.

    Args:
        compressor: Name of a codec, with its settings.
        elements: Elements of the gradient.
        cf: 1: dense.
        ranks: World size.
        calls: FSDP modules, taken as equally large.
        by_all_reduce: Whether the backend's reduce-scatter is an all-reduce, as gloo's is.
        ranks_per_link: Ranks that share a link.

    Raises:
        ValueError: ``compressor`` is unknown, or no codec.
    """
    codec = Dense() if cf == 1.0 else codec_of(compressor)
    if codec is None:
        raise ValueError(f"compressor={compressor!r} cannot ride a reduce-scatter")
    row = max(1, elements // (calls * ranks))
    summed = codec.traits.linear
    payload = calls * ranks * (codec.wire_bytes(row, cf, torch.float32) + (0 if summed else HEADER_BYTES))
    each = (
        2 if (summed and by_all_reduce) or not codec.traits.fixed_size else 1
    )  # where sizes vary, they are sent first
    messages = calls * each * (ranks - 1.0) + small_sum_messages(ranks)  # the tick
    # Sums go in a ring, all else in an all-to-all.
    link = (
        scatter_bytes(payload, ranks, by_all_reduce)
        if summed
        else crossing(ranks_per_link, ranks) * payload // ranks
    )
    return Volume(
        messages, link, payload, "reduce-scatter" if summed else "all-to-all", 1 if summed else ranks
    )


@lru_cache(maxsize=4096)
def _volume(
    compressor: str, elements: int, cf: float, ranks: int, network: Network, named: str, aged: bool
) -> Volume:
    codec = Dense() if cf == 1.0 else codec_of(compressor)
    if codec is None:
        raise UnknownSizes(
            f"compressor={compressor!r}: its payload depends on the shapes of the parameters, which no trace holds"
        )
    messages = float(small_sum_messages(ranks))  # of the tick
    link = payload = 0.0
    collective = AllReduce.name
    for numel, times in Counter(buckets(elements)).items():  # in the order of the buckets
        load = Workload(codec, numel, cf, torch.float32, ranks)
        collective = _collective(load, network, named, aged)
        kind = COLLECTIVES[collective](ALONE)
        count, nbytes = _linear(lambda at, load=load, kind=kind: kind.seconds(at, load), network)  # type: ignore[misc]
        messages, link = messages + times * count, link + times * nbytes
        payload += times * kind.payload_bytes(load)
    decoded = COLLECTIVES[collective].payloads_decoded(ranks)
    return Volume(messages, link, payload, collective, decoded)


def _collective(load: Workload, network: Network, named: str, aged: bool) -> str:
    """Return the collective that an agent with ``collective=named`` uses; auto is by the cost model."""
    if load.codec.traits.linear:
        return AllReduce.name
    if named != AUTO and COLLECTIVES[named.partition(":")[0]].fits(load.codec):
        return named.partition(":")[0]
    return Gather.name if load.ranks <= 2 else choose(network, load, aged).name


def _linear(seconds: Callable[[Network], float], network: Network) -> tuple[float, float]:
    """Return the messages and bytes of a time that is messages · α + bytes / β + work, where links are shared so."""
    nothing = seconds(replace(network, latency_seconds=0.0, bytes_per_second=1e30))
    return (
        seconds(replace(network, latency_seconds=1.0, bytes_per_second=1e30)) - nothing,
        seconds(replace(network, latency_seconds=0.0, bytes_per_second=1.0)) - nothing,
    )


def buckets(elements: int) -> tuple[int, ...]:
    """Return the elements of each bucket as DDP cuts by default: the first is small, so that sending begins early."""
    first, each = FIRST_BUCKET_BYTES // VALUE_BYTES, BUCKET_BYTES // VALUE_BYTES
    if elements <= first:
        return (max(1, elements),)
    whole, rest = divmod(elements - first, each)
    return (first, *[each] * whole, *([rest] if rest else []))
