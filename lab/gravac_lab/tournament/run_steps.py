"""The step time of a tournament's run on a link, with the collective by which the run learned."""

from dataclasses import replace

from gravac.aggregators import parse
from gravac.collectives import AUTO, AllReduce, CompressedAllReduce, Gather, Network, small_sum_messages
from gravac.predict.exchange import UnknownSizes, Volume, buckets, codec_of, volume
from gravac.predict.nominal import NominalJob
from gravac_lab.tournament import Run
from gravac_lab.tournament.rows import DENSE

SIXTEEN_BITS = frozenset({"bf16", "fp16"})
"""Codecs for which a second rounding makes no difference: it errs by 2⁻⁹ at most."""
LEAST_CF = 1.01
"""CF by which the coding of a run with several strengths is timed at least: at a CF of 1 nothing would be coded."""


def step_seconds(run: Run, network: Network, compute_seconds: float, ring_ticks: bool = False) -> float:
    """Return the predicted duration of a step of a run.

    Where layers have several strengths it is that of the mean bytes.

    Args:
        run: of a tournament.
        network: between the ranks.
        compute_seconds: of a step of one rank without any exchange.
        ring_ticks: whether ticks go in a ring, as in simulations before 2026-11-29, next to which the step may stand.

    Raises:
        ValueError: the plan names no codec that is known, or no strength.
    """
    if run.wire_cf is None:  # alone
        return compute_seconds
    if (layered := run.layered_codec) is not None:
        exchange = volume_of_layers(layered, run.elements, run.payload_bytes, run.ranks, run.sent_bytes)
        exchange = _ticked(exchange, run.ranks, ring_ticks)
        job = NominalJob(run.elements, run.ranks, compute_seconds)
        return job.step(layered, max(LEAST_CF, run.wire_cf), network, exchange=exchange).seconds
    if (sends := run.sends) is None:
        if run.plan != DENSE and not run.repeats_dense:
            raise ValueError("has no strength, such as topk@10")
        sends = "", 1.0
    else:
        parse(sends[0])
    job = NominalJob(run.elements, run.ranks, compute_seconds, collective_of(run, network))
    exchange = job.volume(*sends, network, run.payload_bytes)
    return job.step(*sends, network, exchange=_ticked(exchange, run.ranks, ring_ticks)).seconds


def _ticked(exchange: Volume, ranks: int, ring_ticks: bool) -> Volume:
    more = 2 * (ranks - 1) - small_sum_messages(ranks) if ring_ticks else 0
    return replace(exchange, messages=exchange.messages + more)


def collective_of(run: Run, network: Network) -> str:
    """Return the collective by which a run learned: the one that its plan names, else one that gives the exact mean.

    A compressed all-reduce rounds the mean again, so a run that learned without it says nothing of training with it.

    Args:
        run: of a tournament.
        network: between the ranks, by which agents choose.

    Returns:
        A name; ``auto`` where the choice of the agents gives the exact mean.
    """
    if run.collective or run.sends is None:
        return run.collective or AUTO
    rounds_again = chosen_collective(run, network) == CompressedAllReduce.name
    return Gather.name if rounds_again and run.sends[0] not in SIXTEEN_BITS else AUTO


def chosen_collective(run: Run, network: Network) -> str | None:
    """Return the collective that agents choose by default for the plan of a run; None where they have no choice."""
    if run.sends is None:
        return None
    try:
        return volume(run.sends[0], run.elements, run.sends[1], run.ranks, network).collective
    except UnknownSizes:  # an aggregator of several rounds
        return None


def volume_of_layers(
    compressor: str, elements: int, payload_bytes: float, ranks: int, link_bytes: float | None = None
) -> Volume:
    """Return the exchange of a step in which layers have different strengths, and vectors are sent dense.

    It takes one collective of the codec in each of DDP's buckets, which hold the payloads of their layers, and one
    all-reduce of all vectors.

    Args:
        compressor: name of the codec or aggregator of all layers.
        elements: of the gradient.
        payload_bytes: handed to collectives.
        ranks: world size.
        link_bytes: put on a rank's link; None: all of the payload is gathered, or all-reduced where the codec can be.

    Raises:
        ValueError: ``compressor`` is unknown.
    """
    codec, others = codec_of(compressor), ranks - 1.0
    summed = codec is None or codec.traits.linear
    each = 4 if codec is None else 2 if summed else 1  # messages to each other rank, one after the other
    messages = (each * len(buckets(elements)) + 2) * others + small_sum_messages(ranks)
    if link_bytes is None:
        link_bytes = (2 / ranks if summed else 1) * others * payload_bytes
    return Volume(
        messages, link_bytes, payload_bytes, AllReduce.name if summed else Gather.name, 1 if summed else ranks
    )
