"""What coding takes on this job's own host: at the start, each plan encodes and decodes a bucket of noise."""

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gravac import aggregators, memories
from gravac.collectives import ALONE, Exchange
from gravac.compressors import Key
from gravac.memories import Bucket
from gravac.protocol import PlanCost
from gravac_agent.exchange.encoder import Encoder
from gravac_agent.exchange.plan import Directive, StepPlan
from gravac_agent.exchange.tick import StepSums

log = logging.getLogger("gravac.agent")

MOST_ELEMENTS = 1 << 18
"""Elements of the bucket, so that all plans together take about 0.3 s."""
WARM, STEPS = 2, 3
"""Steps in which kernels and thresholds get warm, and those of which the quickest counts, as the other ranks measure on
the same cores."""


class CodingTime(NamedTuple):
    """Seconds of one bucket.

    Args:
        encode: Adding the residual, encoding, and keeping the new residual.
        decode: Decoding the first payload into the mean.
        more: Decoding each other payload.
    """

    encode: float
    decode: float
    more: float


def measure_coding(
    costs: Sequence[PlanCost],
    compressor: str,
    memory: str,
    elements: int,
    ranks: int,
    dtype: torch.dtype,
) -> list[float]:
    """Return the seconds that each plan takes to encode and decode a gradient; infinity where that fails.

    Args:
        costs: Of the plans.
        compressor: The job's, which plans name None.
        memory: The job's.
        elements: Of the gradient.
        ranks: That exchange; each decodes as many payloads, where a plan does not say how many.
        dtype: Of the gradients.
    """
    count = min(elements, MOST_ELEMENTS)
    # The trainer's own random numbers stay what they are.
    noise = torch.Generator(device="cpu").manual_seed(0)
    gradient = torch.randn(count, generator=noise, device="cpu", dtype=torch.float32).to(dtype)
    found = []
    for cost in costs:
        if cost.cf == 1.0:
            found.append(0.0)
            continue
        try:
            one = _measure(cost.codec or compressor, cost.cf, memory, gradient)
        except Exception:
            log.debug("coding with %s could not be measured", cost.codec or compressor, exc_info=True)
            found.append(float("inf"))
            continue
        payloads = ranks if cost.decoded is None else cost.decoded
        found.append(elements / count * (one.encode + one.decode + max(0, payloads - 1) * one.more))
    return found


def with_coding(
    costs: Sequence[PlanCost], seconds: Sequence[float], group: dist.ProcessGroup
) -> tuple[PlanCost, ...]:
    """Return the costs with the coding times of the slowest rank. All ranks call it, and get the same.

    Args:
        costs: Equal on all ranks.
        seconds: Of each, on this rank; infinity where it was not measured, so that the stated time stays.
        group: The ranks.
    """
    slowest = torch.tensor(seconds, dtype=torch.float64, device="cpu")
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    return tuple(
        cost.model_copy(update={"coding_seconds": round(most, 6)}) if most < 1e9 else cost
        for cost, most in zip(costs, slowest.tolist(), strict=True)
    )


def _measure(codec: str, cf: float, memory: str, gradient: Tensor) -> CodingTime:
    """Return what one bucket takes, by the channel that buckets of the training take, without a network."""
    aggregator = aggregators.build(codec, ALONE)
    encoder = Encoder(memories.build(memory), (codec,), (aggregator,), gradients_stay=True)
    numel = gradient.numel()
    bucket = Bucket(0, ("",), (numel,), ((numel,),))
    plan = StepPlan(Directive(0, "hold", cf, cf, 0.0), cf)
    out, rows = torch.empty_like(gradient), []
    for step in range(WARM + STEPS):
        gradient = gradient.roll(numel // 3)  # what comes next is not what came
        began = time.perf_counter()
        channel = encoder.begin(bucket, plan)
        transfer = channel.encode(plan, gradient, Key(0, step, 0, 0), StepSums()).transfer
        if transfer is None:
            raise ValueError(f"{codec} sends a bucket of {numel} elements densely")
        encoded = time.perf_counter()
        channel.resolve(gradient, True)
        channel.decode(transfer, out, False)
        encoder.commit()
        decoded = time.perf_counter()
        if isinstance(transfer, Exchange):  # as another rank's, of whose codes nothing is kept
            other = transfer.codec.rebuild(transfer.payload.parts, numel, cf, Key(0, step, 0, 1))
            transfer.codec.decompress(other, out, 0.5)
        rows.append((encoded - began, decoded - encoded, time.perf_counter() - decoded))
    return CodingTime(*(min(row[part] for row in rows[WARM:]) for part in range(3)))
