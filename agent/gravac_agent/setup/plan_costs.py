"""What the codecs of a job reach and its plans cost: sizes, bytes and messages of a step, by the cost model."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from gravac import offers
from gravac.aggregators import Aggregator
from gravac.collectives import Gather, Network, Owners
from gravac.collectives.compressed_all_reduce import CompressedAllReduce
from gravac.compressors.base import kept_count
from gravac.kernels.device.owned import OwnedLayout, tile_of
from gravac.kernels.device.rounded import RoundedLayout
from gravac.kernels.device.tiled import TiledLayout
from gravac.memories import Bucket
from gravac.policies import Plan
from gravac.predict.exchange import (
    BUCKET_BYTES,
    UnknownSizes,
    Volume,
    codec_of,
    volume,
    volume_of_rounds,
    volume_of_shards,
)
from gravac.predict.samples import ASSUMED_NETWORK
from gravac.protocol import CodecSize, JobSpec, PlanCost
from gravac.signals import efficiency

log = logging.getLogger("gravac.agent")

VALUE_BYTES = 4


class ShardedGradient(NamedTuple):
    """A gradient that FSDP2 shards.

    Args:
        modules: FSDP modules.
        by_all_reduce: Whether the backend's reduce-scatter is an all-reduce, as gloo's is.
    """

    modules: int
    by_all_reduce: bool


def codec_sizes(
    codecs: Mapping[str | None, Aggregator], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[CodecSize, ...]:
    """Return the CFs of the codecs that reach few of them.

    Args:
        codecs: By the names that plans have; None is the job's compressor.
        shapes: Shapes of the trained parameters.
    """
    tensors = Bucket(0, tuple(shapes), tuple(map(math.prod, shapes.values())), tuple(shapes.values()))
    return tuple(
        CodecSize(codec=name, cf=size.cf, up_to=size.up_to)
        for name, aggregator in codecs.items()
        for size in aggregator.sizes(tensors)
    )


def reached_plans(plans: Sequence[Plan], spec: JobSpec) -> tuple[Plan, ...]:
    """Return the plans with the CFs that their codecs reach, each once."""
    return tuple(dict.fromkeys(Plan(codec, spec.reached(codec, cf)) for codec, cf in plans))


def plan_costs(
    plans: tuple[Plan, ...],
    compressor: str,
    elements: int,
    ranks: int,
    network: Network | None,
    collective: str,
    shards: ShardedGradient | None = None,
    kind: str = "unknown",
    remembers: bool = True,
    whole: torch.dtype | None = None,
    inside_seconds: float = 0.0,
    aged: bool = False,
) -> tuple[PlanCost, ...]:
    """Return the cost of each plan, and what it is expected to keep. One whose codec cannot be used here is left out.

    Args:
        plans: As ``Policy.plans`` names them.
        compressor: The job's, which plans name None.
        elements: Elements of the gradient.
        ranks: World size.
        network: Latency and bandwidth; None: not measured, and neither are the seconds.
        collective: The job's, or auto.
        shards: How FSDP2 shards the gradient; None: it does not.
        kind: Kind of the optimizer.
        remembers: Whether the job has an error memory. Without one, simulations say nothing of a codec that loses.
        whole: Of gradients whose device makes whole messages where a codec has them; None: it makes none.
        inside_seconds: In which the ranks of a host divide the gradients of a step and put the means together.
        aged: Whether every optimizer is of ``gravac.optim``, as ``JobSpec.aged``.
    """
    found, known = [], network or ASSUMED_NETWORK
    for plan in plans:
        codec = compressor if plan.codec is None else plan.codec
        try:
            # Where nothing was measured, sizes still need a collective, and that is chosen for some network.
            if shards is None:
                cost = _volume(codec, plan.cf, elements, ranks, known, collective, aged)
            else:
                cost = volume_of_shards(
                    codec, elements, plan.cf, ranks, *shards, ranks_per_link=known.ranks_per_link
                )
            if whole is not None and plan.cf > 1.0:
                cost = _in_whole_messages(cost, codec, plan.cf, elements, ranks, whole)
        except (ValueError, NotImplementedError) as error:
            log.warning("the policy cannot choose %s at CF %g: %s", codec, plan.cf, error)
            continue
        simulated = plan.cf > 1.0 and (remembers or offers.of(codec).lossless)
        payloads = ranks if cost.decoded is None else cost.decoded
        found.append(
            PlanCost(
                codec=plan.codec,
                cf=plan.cf,
                payload_bytes=round(cost.payload_bytes),
                link_bytes=cost.link_bytes,
                messages=cost.messages,
                decoded=cost.decoded,
                seconds=None if network is None else min(1e9, _seconds(cost, network) + inside_seconds),
                coding_seconds=min(1e9, offers.coding_seconds(codec, plan.cf, elements, payloads)),
                kept=efficiency.kept(codec, plan.cf, kind, ranks) if simulated else None,
            )
        )
    return tuple(found)


def _in_whole_messages(
    cost: Volume, codec: str, cf: float, elements: int, ranks: int, dtype: torch.dtype
) -> Volume:
    """Return the cost of a plan with the sizes of its whole messages, where its collective sends them."""
    made = codec_of(codec)
    if made is None:
        return cost
    numel = min(elements, BUCKET_BYTES // VALUE_BYTES)  # larger gradients are several buckets
    values, rounding = made.message_values(dtype), made.message_rounding(cf, dtype)
    if values is not None and cost.collective == Gather.name:
        nbytes = TiledLayout(numel, kept_count(numel, cf), values).nbytes
    elif (
        values is not None and cost.collective == Owners.name and (tile := tile_of(numel, ranks)) is not None
    ):
        share = -(-kept_count(numel, cf) // ranks)
        nbytes = OwnedLayout(numel, share, values, ranks, 0, tile).payload_bytes
    elif rounding is not None and cost.collective in (Gather.name, CompressedAllReduce.name):
        shards = cost.collective == CompressedAllReduce.name
        nbytes = RoundedLayout(numel, ranks, shards, rounding).payload_bytes
    else:
        return cost
    payload_bytes = nbytes * elements / numel
    link_bytes = cost.link_bytes * payload_bytes / cost.payload_bytes
    return replace(cost, payload_bytes=payload_bytes, link_bytes=link_bytes)


def without_waits(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """Return the plans whose codec never makes the host wait for a device. The job's own compressor stays."""
    return tuple(
        plan
        for plan in plans
        if plan.codec is None or (codec := codec_of(plan.codec)) is None or codec.traits.sync_free
    )


def _seconds(cost: Volume, network: Network) -> float:
    """Return the seconds of an exchange, to the microsecond."""
    seconds = cost.messages * network.latency_seconds + cost.link_bytes / network.bytes_per_second
    return min(1e9, round(seconds, 6))


def _volume(
    codec: str, cf: float, elements: int, ranks: int, network: Network, collective: str, aged: bool
) -> Volume:
    try:
        return volume(codec, elements, cf, ranks, network, collective, aged)
    except UnknownSizes:  # an aggregator with rounds of its own: what the CF leaves of the gradient
        return volume_of_rounds(VALUE_BYTES * elements / cf, ranks)
