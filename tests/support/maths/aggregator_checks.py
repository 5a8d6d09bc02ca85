"""Steps of several ranks through an aggregator, on any communicator, and what must hold of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gravac.aggregators import Aggregator, build
from gravac.collectives import AUTO, Communicator
from gravac.collectives.simulated import SimulatedWorld
from gravac.compressors import Key
from gravac.memories import Bucket
from tests.support.maths.members import ways


def bucket(number: int, *shapes: tuple[int, ...]) -> Bucket:
    return Bucket(
        number, tuple(f"p{number}.{at}" for at in range(len(shapes))), tuple(map(math.prod, shapes)), shapes
    )


SELECTING = ways("topk", sends_all=False)
"""A selector by each way that does not send all."""
BUCKETS = (
    bucket(0, (12, 20), (12,), (12, 20)),
    bucket(1, (8, 2, 3, 3), (8,)),
    bucket(2, (5,)),
    bucket(3, (30, 7)),
)


@dataclass
class Step:
    """One bucket of one step on one rank."""

    mean: Tensor
    sent: Tensor
    payload_bytes: int
    sent_bytes: int


def gradient(rank: int, step: int, one: Bucket, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + one.number)
    return scale * torch.randn(sum(one.numels), generator=generator)


def steps(
    aggregator: Aggregator,
    count: int,
    cf: float,
    buckets: Sequence[Bucket] = BUCKETS,
    source: Callable[[int, int, Bucket], Tensor] = gradient,
    first: int = 0,
) -> list[list[Step]]:
    """``count`` steps on one rank; all buckets of a step are in flight at once."""
    rank, found = aggregator.communicator.rank, []
    parts = [aggregator.open(one) for one in buckets]
    for step in range(first, first + count):
        flights = []
        for one, part in zip(buckets, parts, strict=True):
            x = source(rank, step, one)
            key = Key(3, step, one.number, rank)
            flights.append((x, part.prepare(x, (cf,), key, torch.float32).send(cf)))
        done = []
        for x, flight in flights:
            flight.work.wait()
            mean = torch.empty_like(x)
            flight.mean_into(mean)
            residual = x.clone()
            flight.codec.remove(flight.payload, residual)
            done.append(Step(mean, x - residual, flight.payload_bytes, flight.sent_bytes))
        average_statistics(aggregator)
        aggregator.commit()
        found.append(done)
    return found


def aggregate(aggregator: Aggregator, one: Bucket, x: Tensor, cf: float, key: Key) -> tuple[Tensor, Tensor]:
    """The mean over ranks of ``x``, and what this rank sent."""
    exchange = aggregator.open(one).prepare(x, (cf,), key, torch.float32).send(cf)
    exchange.work.wait()
    mean = torch.zeros_like(x, dtype=torch.float32)
    exchange.mean_into(mean)
    return mean, exchange.codec.decode(exchange.payload)


def average_statistics(aggregator: Aggregator) -> None:
    """Average the figures of all ranks and learn from them, as the agent's tick does."""
    figures = torch.tensor(aggregator.local_statistics(), dtype=torch.float64)
    if figures.numel():
        aggregator.communicator.sum(figures).wait()
        aggregator.apply_mean_statistics((figures / aggregator.communicator.size).tolist())


def made(text: str, communicator: Communicator) -> Aggregator:
    """The aggregator of a text such as ``topk``, or ``topk by shared``, the collective behind it."""
    codec, _, collective = text.partition(" by ")
    return build(codec, communicator, collective or AUTO)


def world(size: int, text: str, each: Callable[[Aggregator], object]) -> list[object]:
    """What ``each`` returns on every rank of a simulated world."""

    def body(communicator: Communicator) -> object:
        return each(made(text, communicator))

    return SimulatedWorld(size).run(body)


def run(size: int, text: str, count: int = 3, cf: float = 4.0, **given: Any) -> list[list[list[Step]]]:
    """Steps of each rank of a world of ``size``."""
    return world(size, text, lambda aggregator: steps(aggregator, count, cf, **given))  # type: ignore[return-value]
