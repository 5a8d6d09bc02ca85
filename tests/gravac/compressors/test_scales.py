"""Layers of unlike magnitude in one bucket: each tensor has its own scale, and a hard threshold is one for all."""

import pytest
import torch
from torch import Tensor

from gravac.aggregators import Aggregator
from gravac.collectives import ALONE
from gravac.compressors import Key
from gravac.compressors import build as build_codec
from tests.support.maths.aggregator_checks import (
    BUCKETS,
    Bucket,
    aggregate,
    bucket,
    gradient,
    made,
    steps,
    world,
)
from tests.support.maths.checks import KEY

LAYERS = (1.0, 30.0, 0.01, 5.0)
"""How large the gradients of a bucket's tensors are, in turn."""


def uneven(rank: int, step: int, one: Bucket) -> Tensor:
    """A bucket whose tensors differ in magnitude, as the layers of a network do."""
    sizes = [LAYERS[(one.number + at) % len(LAYERS)] for at in range(len(one.numels))]
    scales = torch.repeat_interleave(torch.tensor(sizes), torch.tensor(one.numels))
    return gradient(rank, step, one) * scales


def energy(x: Tensor) -> float:
    return float(x.double().square().sum())


def claimed(aggregator: Aggregator, one: Bucket, x: Tensor, step: int, cf: float) -> tuple[float, float]:
    """Energy the gate is given for one bucket of a step, and the energy that then was really sent."""
    draft = aggregator.open(one).prepare(
        x, (cf,), Key(3, step, one.number, aggregator.communicator.rank), x.dtype
    )
    before = draft.kept_energy(cf)
    flight = draft.send(cf)
    flight.work.wait()
    sent = flight.codec.decode(flight.payload).double()
    inner = float(sent @ x.double())
    return before, inner**2 / energy(sent) if energy(sent) else 0.0


@pytest.mark.parametrize("text", ["scaledsign", "onebit", "majority"])
def test_sign_codecs_have_one_scale_a_tensor(text: str) -> None:
    """Each tensor is decoded as if it were alone, among several ranks and buckets."""

    def together(aggregator: Aggregator) -> list[Tensor]:
        return [one.sent for step in steps(aggregator, 2, 8.0, source=uneven) for one in step]

    def apart(aggregator: Aggregator) -> list[Tensor]:
        found = []
        for step in range(2):
            for one in BUCKETS:
                x, pieces = uneven(aggregator.communicator.rank, step, one), []
                for piece, shape in zip(x.split(list(one.numels)), one.shapes, strict=True):
                    alone, key = bucket(0, shape), Key(3, step, 0, aggregator.communicator.rank)
                    pieces.append(aggregate(aggregator, alone, piece, 8.0, key)[1])
                found.append(torch.cat(pieces))
        return found

    for ours, alone in zip(world(3, text, together), world(3, text, apart), strict=True):
        for one, two in zip(ours, alone, strict=True):  # type: ignore[call-overload]
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("text", "scales"), [("scaledsign", 1), ("onebit", 2), ("majority", 1)])
def test_a_scale_a_tensor_keeps_what_a_scale_a_bucket_loses(text: str, scales: int) -> None:
    one = bucket(0, (40, 50), (40,), (30, 40), (30,))
    aggregator, x = made(text, ALONE), uneven(0, 0, one)
    draft = aggregator.open(one).prepare(x, (8.0,), KEY, torch.float32)
    single = build_codec("onebit" if text == "onebit" else "scaledsign")
    per_bucket = single.kept_energy(single.compress(x, 8.0, KEY, torch.float32), x)
    parts = [single.compress(part, 8.0, KEY, torch.float32) for part in x.split(list(one.numels))]
    per_tensor = sum(
        single.kept_energy(part, piece) for part, piece in zip(parts, x.split(list(one.numels)), strict=True)
    )
    assert draft.kept_energy(8.0) == pytest.approx(per_tensor, rel=1e-5)
    assert draft.kept_energy(8.0) > 1.5 * per_bucket
    whole = bucket(0, (sum(one.numels),))
    more = aggregator.wire_bytes(one, 8.0, torch.float32, 4) - aggregator.wire_bytes(
        whole, 8.0, torch.float32, 4
    )
    assert more == 4 * scales * 3


@pytest.mark.parametrize("text", ["scaledsign", "onebit"])
def test_fitted_sign_codecs_prove_their_bound_and_know_their_size(text: str) -> None:
    codec = build_codec(text).fitted(((8, 5), (0,), (7,), (3, 3)))
    for seed in range(20):
        x = torch.randn(56, generator=torch.Generator().manual_seed(seed))
        x[40:47] = 0.0 if seed % 2 else x[40:47] * 1e4
        payload = codec.compress(x, 8.0, KEY, torch.float32)
        assert payload.nbytes == codec.wire_bytes(56, 8.0, torch.float32) == payload.parts[0].nbytes + 7
        error = energy(codec.decode(payload) - x)
        assert error <= (codec.bound(56, 8.0).limit(energy(x)) or 0.0) + 1e-6 * energy(x)
        kept = codec.kept_energy(payload, x)
        assert kept + error == pytest.approx(energy(x), rel=1e-5)  # a projection
    one_hot = torch.zeros(56)
    one_hot[3] = -2.0  # the worst there is: 1/40 of its energy is kept, as the bound says
    if text == "scaledsign":
        error = energy(codec.decode(codec.compress(one_hot, 8.0, KEY, torch.float32)) - one_hot)
        assert error == pytest.approx(codec.bound(56, 8.0).limit(4.0))
    with pytest.raises(ValueError, match=f"{text} was fitted to tensors of"):
        codec.compress(torch.ones(55), 8.0, KEY, torch.float32)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(
    "text", ["powersgd:rank=1", "powersgd", "majority", "terngrad-sum", "terngrad-sum:clip=2.5"]
)
def test_the_gate_is_given_what_is_really_sent(text: str, size: int) -> None:
    """Over buckets and ranks, from the second step on: a rank's own choice alone is more than what gets through."""
    count = 24

    def each(aggregator: Aggregator) -> tuple[float, float]:
        claims = sent = 0.0
        for step in range(count):
            for one in BUCKETS:
                x = gradient(aggregator.communicator.rank, step, one)
                before, really = claimed(aggregator, one, x, step, 4.0)
                if step:
                    claims, sent = claims + before, sent + really
            aggregator.commit()
        return claims, sent

    ranks = world(size, text, each)
    claims, sent = (sum(rank[at] for rank in ranks) for at in range(2))  # type: ignore[index]
    assert claims == pytest.approx(sent, rel=0.04)
