"""Aggregators: one a file. Every codec is one too, by one message a rank. To add one, name it in ``AGGREGATORS``."""

from collections.abc import Callable

import torch.distributed as dist

from gravac.aggregators.base import Aggregator, Draft, Tensors
from gravac.aggregators.majority import MajorityVote
from gravac.aggregators.oneshot import OneShot
from gravac.aggregators.powersgd import PowerSGD
from gravac.aggregators.terngradsum import TernGradSum
from gravac.collectives import ALONE, AUTO, Communicator, Exchange, Network, parse_collective
from gravac.compressors import COMPRESSORS, spec
from gravac.compressors import build as build_compressor
from gravac.wording import did_you_mean

AGGREGATORS: dict[str, type[Aggregator]] = {each.name: each for each in (PowerSGD, MajorityVote, TernGradSum)}


Builder = Callable[[dist.ProcessGroup | Communicator], Aggregator]


def parse(
    text: str, collective: str = AUTO, network: Network | None = None, elements: int | None = None
) -> Builder:
    """What builds the aggregator that ``text`` describes, on a group: ``powersgd:rank=2``, or any codec's text.

    ``collective`` and ``network``: how payloads meet, ``elements``: of the whole model, see ``OneShot``; aggregators of
    several rounds have their own way. Raises ValueError naming what is known.
    """
    name, settings = spec.split(text)
    parse_collective(collective)
    if name in AGGREGATORS:
        kind = AGGREGATORS[name]
        spec.make(kind, text, settings, ALONE)  # says now what is wrong
        return lambda group: spec.make(kind, text, settings, group)
    if name not in COMPRESSORS and "+" not in text:
        every = sorted([*COMPRESSORS, *AGGREGATORS])
        raise ValueError(
            f"compressor={name!r} is unknown{did_you_mean(name, every)}; choose one of {', '.join(every)}"
        )
    OneShot(build_compressor(text), ALONE, collective)
    return lambda group: OneShot(build_compressor(text), group, collective, network, elements)


def build(
    text: str,
    group: dist.ProcessGroup | Communicator,
    collective: str = AUTO,
    network: Network | None = None,
    elements: int | None = None,
) -> Aggregator:
    """The aggregator that ``text`` describes. Raises ValueError naming what is known."""
    return parse(text, collective, network, elements)(group)


__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "Draft",
    "Exchange",
    "MajorityVote",
    "OneShot",
    "PowerSGD",
    "Tensors",
    "TernGradSum",
    "build",
    "parse",
]
