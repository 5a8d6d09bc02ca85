"""Aggregators, one per file: ways for all ranks to compute the mean of their gradients together.

Every codec is one too, with one message per rank (``OneShot``). To add one, write its file and name its class in
``AGGREGATORS``. It shares the name space of the codecs.
"""

from collections.abc import Callable

import torch.distributed as dist

from gravac.aggregators.base import Aggregator, BucketAggregator, Draft
from gravac.aggregators.compressed_reduce_scatter import CompressedReduceScatter
from gravac.aggregators.majority import MajorityVote
from gravac.aggregators.oneshot import OneShot
from gravac.aggregators.powersgd import PowerSGD
from gravac.aggregators.terngradsum import TernGradSum
from gravac.codec_text import split_settings
from gravac.collectives import ALONE, AUTO, Communicator, Network, parse_collective
from gravac.compressors import COMPRESSORS
from gravac.compressors import build as build_compressor
from gravac.registry import Registry, split

AGGREGATORS: Registry[Aggregator] = Registry(
    "compressor",
    (PowerSGD, MajorityVote, TernGradSum),
    base=Aggregator,
    group="gravac.aggregators",
    shares=COMPRESSORS,
)

Builder = Callable[[dist.ProcessGroup | Communicator], Aggregator]


def parse(
    text: str,
    collective: str = AUTO,
    network: Network | None = None,
    elements: int | None = None,
    aged: bool = False,
) -> Builder:
    """Check ``text`` and return what builds its aggregator on a process group.

    Args:
        text: An aggregator such as ``powersgd:rank=2``, or any codec.
        collective: How a codec's payloads meet. Aggregators of several rounds have their own way.
        network: The measured network, for ``auto``; see ``OneShot``.
        elements: Gradient elements of the whole model; see ``OneShot``.
        aged: Whether every optimizer is of ``gravac.optim``, for ``auto``; see ``OneShot``.

    Raises:
        ValueError: There is no such name, setting or value. The message names what is allowed.
    """
    name = split_settings(text)[0].strip()
    parse_collective(collective)
    if name in AGGREGATORS:
        AGGREGATORS.build(text, ALONE)  # raises now what is wrong
        return lambda group: AGGREGATORS.build(text, group)
    if name not in COMPRESSORS and "+" not in text:
        raise COMPRESSORS.unknown(name, *AGGREGATORS.names())
    OneShot(build_compressor(text), ALONE, collective)
    return lambda group: OneShot(build_compressor(text), group, collective, network, elements, aged)


def build(
    text: str,
    group: dist.ProcessGroup | Communicator,
    collective: str = AUTO,
    network: Network | None = None,
    elements: int | None = None,
    aged: bool = False,
) -> Aggregator:
    """Build the aggregator of ``text`` on ``group``; arguments and errors are those of ``parse``."""
    return parse(text, collective, network, elements, aged)(group)


def build_sharded(
    text: str, group: dist.ProcessGroup | Communicator, elements: int | None = None
) -> CompressedReduceScatter:
    """Build the compressed reduce-scatter of a codec on ``group``.

    Args:
        text: A codec with its settings, such as ``int8`` or ``topk+bf16``.
        group: The ranks that average.
        elements: Gradient elements of the whole model; see ``CompressedReduceScatter``.

    Raises:
        ValueError: There is no such codec, setting or value, or it is an aggregator of several rounds.
    """
    parse(text)
    name, _ = split(text, "compressor")
    if name in AGGREGATORS:
        raise ValueError(
            f"compressor={text!r} averages whole gradients in several rounds, and a reduce-scatter gives each rank a "
            "shard only: choose a codec, such as topk+bf16, blockrandomk or int8"
        )
    return CompressedReduceScatter(build_compressor(text), group, elements)


__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "BucketAggregator",
    "CompressedReduceScatter",
    "Draft",
    "MajorityVote",
    "OneShot",
    "PowerSGD",
    "TernGradSum",
    "build",
    "build_sharded",
    "parse",
]
