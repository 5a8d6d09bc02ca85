"""What the plans of a policy cost in this job: bytes and messages of a step, by the cost model."""

import logging
from typing import NamedTuple

from gravac.collectives import Network
from gravac.policies import Plan
from gravac.protocol import PlanCost
from gravac.whatif.exchange import UnknownSizes, Volume, codec_of, volume, volume_of_rounds, volume_of_shards
from gravac.whatif.samples import ASSUMED_NETWORK

log = logging.getLogger("gravac.agent")

VALUE_BYTES = 4


class Shards(NamedTuple):
    """A gradient that FSDP2 shards.

    Args:
        modules: FSDP modules.
        whole: Whether the backend's reduce-scatter is an all-reduce, as gloo's is.
    """

    modules: int
    whole: bool


def plan_costs(
    plans: tuple[Plan, ...],
    compressor: str,
    elements: int,
    ranks: int,
    network: Network | None,
    collective: str,
    shards: Shards | None = None,
) -> tuple[PlanCost, ...]:
    """Return the cost of each plan. One whose codec cannot be used here is left out.

    Args:
        plans: As ``Policy.plans`` names them.
        compressor: The job's, which plans name None.
        elements: Of the gradient.
        ranks: World size.
        network: Latency and bandwidth; None: not measured, and neither are the seconds.
        collective: The job's, or auto.
        shards: How FSDP2 shards the gradient; None: it does not.
    """
    found = []
    for plan in plans:
        codec = compressor if plan.codec is None else plan.codec
        try:
            if shards is None:
                cost = _volume(codec, plan.cf, elements, ranks, network or ASSUMED_NETWORK, collective)
            else:
                cost = volume_of_shards(codec, elements, plan.cf, ranks, shards.modules, shards.whole)
        except (ValueError, NotImplementedError) as error:
            log.warning("the policy cannot choose %s at CF %g: %s", codec, plan.cf, error)
            continue
        found.append(
            PlanCost(
                codec=plan.codec,
                cf=plan.cf,
                payload_bytes=round(cost.payload_bytes),
                link_bytes=cost.link_bytes,
                messages=cost.messages,
                decoded=cost.decoded,
                seconds=None if network is None else _seconds(cost, network),
            )
        )
    return tuple(found)


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


def _volume(codec: str, cf: float, elements: int, ranks: int, network: Network, collective: str) -> Volume:
    try:
        return volume(codec, elements, cf, ranks, network, collective)
    except UnknownSizes:
        return volume_of_rounds(VALUE_BYTES * elements / cf, ranks)
