"""Simulates a job without the agent, gloo or DDP: the same steps in one process, from the formulas alone."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from gravac.aggregators import Aggregator, build
from gravac.collectives import Communicator
from gravac.collectives.simulated import SimulatedWorld
from gravac.compressors import Dense, Key
from gravac.memories import Bucket
from gravac.memories import build as build_memory
from tests.support.maths.aggregator_checks import average_statistics

Batch = Callable[[int, int], tuple[Tensor, Tensor]]
Layouts = Sequence[Sequence[Sequence[str]]]


def simulate(
    make: Callable[[], nn.Module],
    batch: Batch,
    *,
    world: int,
    compressor: str,
    memory: str,
    collective: str,
    cfs: Sequence[float],
    layouts: Layouts,
    rate: float,
    measured: float | None = None,
    codecs: Sequence[str] = (),
) -> list[Tensor]:
    """Return the parameters after SGD with one step for each of ``cfs``, in the buckets (names) of ``layouts``.

    ``measured``: CF at which dense steps are compressed too, as the agent does, for codecs that learn from it.
    ``codecs``: what each step is sent with; empty: all with ``compressor``.
    """

    modules = [make() for _ in range(world)]  # not in the threads, which share the generator that makes them

    def each(communicator: Communicator) -> list[Tensor]:
        module = modules[communicator.rank]
        elements = sum(parameter.numel() for parameter in module.parameters())
        chosen = codecs or [compressor] * len(cfs)
        built = {
            one: build(one, communicator, collective, elements=elements) for one in (compressor, *chosen)
        }
        each_step = [built[one] for one in chosen]
        return _rank(each_step, module, batch, memory, cfs, layouts, rate, measured)

    return SimulatedWorld(world).run(each)[0]


def _rank(
    aggregators: Sequence[Aggregator],
    module: nn.Module,
    batch: Batch,
    memory: str,
    cfs: Sequence[float],
    layouts: Layouts,
    rate: float,
    measured: float | None,
) -> list[Tensor]:
    communicator, residuals = aggregators[0].communicator, build_memory(memory)
    parameters = dict(module.named_parameters())
    for step, (cf, layout) in enumerate(zip(cfs, layouts, strict=True)):
        aggregator = aggregators[step]
        x, y = batch(communicator.rank, step)
        module.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        for number, names in enumerate(layout):
            ours = [parameters[name] for name in names]
            bucket = Bucket(
                number, tuple(names), tuple(p.numel() for p in ours), tuple(tuple(p.shape) for p in ours)
            )
            flat = torch.cat([p.grad.flatten() for p in ours if p.grad is not None])
            part = residuals.open(bucket)
            p = part.compensate(flat, dense=cf == 1.0)
            mean = torch.empty_like(flat)
            key = Key(0, step, number, communicator.rank)
            if cf == 1.0:
                if measured is not None:
                    aggregator.open(bucket).prepare(p, (measured,), key, flat.dtype)
                total = p * (1.0 / communicator.size)
                communicator.sum(total).wait()
                part.update(Dense(), None)
                mean.copy_(total)
            else:
                flight = aggregator.open(bucket).prepare(p, (cf,), key, flat.dtype).send(cf)
                flight.work.wait()
                part.update(flight.codec, flight.payload)
                flight.mean_into(mean)
            for one, piece in zip(ours, mean.split(list(bucket.numels)), strict=True):
                one.grad = piece.view_as(one)
        average_statistics(aggregator)
        residuals.commit()
        aggregator.commit()
        with torch.no_grad():
            for one in parameters.values():
                if one.grad is not None:
                    one.add_(one.grad, alpha=-rate)  # as SGD does, to the last bit
    return [param.detach() for param in parameters.values()]
