"""Collectives: nothing is lost when payloads are exchanged."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gravac.aggregators import Aggregator, OneShot, build_sharded
from gravac.collectives import Collective, Communicator, Gather, Owners, SharedSupport
from gravac.collectives.communicator import Work
from gravac.collectives.simulated import SimulatedWorld
from gravac.compressors import COMPRESSORS, Key, Payload, build
from gravac.compressors.base import Layout
from gravac.memories import Bucket
from gravac.memories import build as build_memory
from tests.support.maths.aggregator_checks import SELECTING, aggregate, bucket, gradient, made, world
from tests.support.maths.checks import vector


def one_step(
    size: int, text: str, xs: list[Tensor], cf: float, number: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """(mean, what was sent) on each rank."""
    one = bucket(0, (xs[0].numel(),))

    def each(aggregator: Aggregator) -> tuple[Tensor, Tensor]:
        rank = aggregator.communicator.rank
        return aggregate(aggregator, one, xs[rank], cf, Key(1, number, 0, rank))

    return world(size, text, each)  # type: ignore[return-value]


@settings(max_examples=40)
@given(
    numel=st.integers(1, 300),
    ranks=st.integers(1, 6),
    cf=st.sampled_from([1.0, 1.5, 4.0, 30.0, 1000.0]),
    kind=st.sampled_from(["gauss", "heavy", "zero", "one_hot", "constant", "cluster"]),
    text=st.sampled_from(SELECTING),
)
def test_nothing_is_lost(numel: int, ranks: int, cf: float, kind: str, text: str) -> None:
    """Mean + mean residual = mean of what came in, for any shape of gradient, one that fits no shard too."""
    if kind == "cluster":  # a layer that dwarfs the others
        xs = [
            vector("gauss", numel, rank) * torch.where(torch.arange(numel) < numel // 3, 1e3, 1e-3)
            for rank in range(ranks)
        ]
    else:
        xs = [vector(kind, numel, rank) for rank in range(ranks)]
    done = one_step(ranks, text, xs, cf)
    largest = max(float(x.abs().max()) for x in xs)
    for mean, _ in done:
        assert torch.equal(mean, done[0][0])
    residual = torch.stack([x - sent for x, (_, sent) in zip(xs, done, strict=True)]).double().mean(0)
    came_in = torch.stack(xs).double().mean(0)
    assert float((done[0][0].double() + residual - came_in).abs().max()) <= 1e-6 * largest * ranks
    k = max(1, int(numel / cf))
    assert int((done[0][0] != 0).sum()) <= k + ranks  # no build-up, unlike a gather


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        *(
            ("residual", text)
            for text in (
                *SELECTING,
                "topk+bf16 by owners",
                "topk+int8 by owners",
                "topk+nearest:levels=15 by shared",
                "topk+bf16 by shared:leader=largest",
            )
        ),
        *((memory, "topk by owners") for memory in ("conef:bits=8", "momentum")),
        ("momentum", "topk by shared"),
    ],
)
def test_over_many_steps_every_gradient_arrives(memory: str, text: str) -> None:
    """Applied + residual = what came in, through every memory, and the residual stops growing."""
    one, ranks = Bucket(0, ("a", "b"), (300, 100)), 3
    exact = memory == "residual"

    def each(aggregator: Aggregator) -> tuple[Tensor, Tensor, Tensor, list[float]]:
        rank, error_memory = aggregator.communicator.rank, build_memory(memory)
        error_memory.world_size = ranks
        applied, came, sizes = (
            torch.zeros(400, dtype=torch.float64),
            torch.zeros(400, dtype=torch.float64),
            [],
        )
        for step in range(30):
            g = torch.randn(400, generator=torch.Generator().manual_seed(7 * step + rank)) + vector(
                "heavy", 400, 9
            )
            came += g.double()
            part = error_memory.open(one)
            p = part.compensate(g)
            flight = aggregator.open(one).prepare(p, (8.0,), Key(0, step, 0, rank), torch.float32).send(8.0)
            part.update(flight.codec, flight.payload)
            mean = torch.empty(400)
            flight.mean_into(mean)
            applied += mean.double()
            error_memory.commit()
            left = torch.cat([error_memory.state_dict()[name] for name in one.names])
            sizes.append(float(left.norm()))
        return applied, came, left.double(), sizes

    done: list[tuple[Tensor, Tensor, Tensor, list[float]]] = world(ranks, text, each)  # type: ignore[assignment]
    if exact:
        residual = torch.stack([left for _, _, left, _ in done]).mean(0)
        came = torch.stack([came for _, came, _, _ in done]).mean(0)
        assert float((done[0][0] + residual - came).abs().max()) <= 1e-5 * float(came.abs().max())
    for _, _, _, sizes in done:
        assert all(math.isfinite(size) for size in sizes)
        assert max(sizes[20:]) < 2.0 * max(sizes[10:20])


@pytest.mark.parametrize("text", ["topk by shared", "topk by shared:leader=turns", "topk by owners"])
def test_the_gate_compares_what_was_sent_not_what_was_chosen(text: str) -> None:
    """On ranks without the leader's places (or with sums that are not sent) gain is less than their own Top-k's."""
    one = bucket(0, (2000,))

    def each(aggregator: Aggregator) -> tuple[float, float, float, float, float]:
        assert isinstance(aggregator, OneShot)
        rank = aggregator.communicator.rank
        x = gradient(rank, 0, one)
        key = Key(0, 1, 0, rank)

        def kept(cf: float) -> float:
            return aggregator.open(one).prepare(x, (cf,), key, torch.float32).kept_energy(cf)

        chosen = kept(10.0)
        flight = aggregator.open(one).prepare(x, (10.0,), key, torch.float32).send(10.0)
        inner, sent = flight.codec.inner(flight.payload, x), flight.codec.energy(flight.payload)
        aggregator.rollback()
        assert kept(10.0) == chosen
        aggregator.open(one).prepare(x, (10.0,), key, torch.float32).send(10.0)
        aggregator.commit()
        other = made(text, aggregator.communicator)
        opened_before = other.open(one)
        other.load_state_dict(aggregator.state_dict())
        for part in (opened_before, other.open(one)):
            assert part.prepare(x, (10.0,), key, torch.float32).kept_energy(10.0) == kept(10.0)
        return chosen, kept(10.0), max(0.0, inner) ** 2 / sent, kept(100.0), 0.0

    ranks: list[tuple[float, ...]] = world(3, text, each)  # type: ignore[assignment]
    for rank, (chosen, after, truly, stronger, _) in enumerate(ranks):
        assert after == pytest.approx(min(chosen, truly), rel=1e-4)
        if text == "topk by shared:leader=turns" and rank == 1:
            assert after == chosen  # the leader of step 1
        else:
            assert after < 0.9 * chosen
        assert stronger < after  # as at the CF nearest to it


@pytest.mark.parametrize("way", [Gather, Owners, SharedSupport])
def test_payloads_of_different_steps_are_never_averaged(way: type[Collective]) -> None:
    world = SimulatedWorld(2)

    def each(network: Communicator) -> None:
        codec, key = build("topk"), Key(1, 7 + 2 * network.rank, 0, network.rank)  # rank 1 is ahead
        x = torch.randn(100)
        layout = codec.layout(100, 10.0, x.dtype)
        flight = way(network).exchange(layout, codec.compress(x, 10.0, key, x.dtype), x, key)
        flight.mean_into(torch.empty(100))

    with pytest.raises(ValueError, match="the ranks are out of step"):
        world.run(each)


@pytest.mark.parametrize("text", ["topk+bf16", "nearest:levels=7,coding=huffman"])
def test_a_rank_does_not_unpack_its_own_payload(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    unpack = Layout.unpack

    def counted(self: Layout, buffer: Tensor, key: Key) -> Payload:
        read.append(key.rank)
        return unpack(self, buffer, key)

    monkeypatch.setattr(Layout, "unpack", counted)
    xs = [vector("gauss", 200, rank) for rank in range(3)]
    (first, _), *_ = one_step(3, text, xs, 10.0)
    assert sorted(read) == [0, 0, 1, 1, 2, 2], "by the two others"
    sent = [build(text).decode(build(text).compress(x, 10.0, Key(1, 0, 0, 0), x.dtype)) for x in xs]
    torch.testing.assert_close(first, torch.stack(sent).mean(0))


class Damaging(Communicator):
    """Changes a byte of rank 0's messages: on their way to rank 1, or before all ranks get them."""

    def __init__(self, inner: Communicator, at: float, for_all: bool) -> None:
        self._inner, self._at, self._for_all = inner, at, for_all
        self.rank, self.size = inner.rank, inner.size
        self.damaged = 0

    def sum(self, x: Tensor) -> Work:
        return self._inner.sum(x)

    def maximum(self, x: Tensor) -> Work:
        return self._inner.maximum(x)

    def scatter_sum(self, out: Tensor, x: Tensor) -> Work:
        return self._inner.scatter_sum(out, x)

    def gather(self, out: Tensor, x: Tensor) -> Work:
        return self._carry(self._inner.gather, out, x, len(x))

    def exchange(self, out: Tensor, x: Tensor) -> Work:
        return self._carry(self._inner.exchange, out, x, len(x) // self.size)

    def broadcast(self, x: Tensor, root: int) -> Work:
        work = self._inner.broadcast(x, root)
        if root == 0 and self.rank == 1:
            self._damage(x)
        return work

    def _carry(self, carry: Callable[[Tensor, Tensor], Work], out: Tensor, x: Tensor, size: int) -> Work:
        message = x.dtype == torch.uint8  # else sizes of messages, or energies
        if message and self.rank == 0 and self._for_all:
            x = x.clone()
            self._damage(
                x[-size:]
            )  # of an all-to-all, what travels: a rank does not read what it sent itself
        work = carry(out, x)
        if message and self.rank == 1 and not self._for_all:
            self._damage(out[:size])
        return work

    def _damage(self, message: Tensor) -> None:
        if len(message):
            message[int(self._at * len(message))] ^= 1 << int(64 * self._at) % 8
            self.damaged += 1


def is_varying(codec: str) -> bool:
    """Whether its messages are of different sizes; values of linear codecs are summed without messages."""
    traits = build(codec).traits
    return not (traits.fixed_size or traits.linear)


VARYING = [
    *(f"{codec} by gather" for codec in sorted(COMPRESSORS) if is_varying(codec)),
    *(f"{codec}:levels=3,coding=huffman by gather" for codec in ("nearest", "dither", "dither-subtractive")),
    "nearest:levels=7,coding=huffman by compressed-all-reduce",
    "dither:levels=7,coding=huffman by compressed-all-reduce",
    "topk by shared",
    "dgc sharded",
    "nearest:levels=3,coding=huffman sharded",
]


@pytest.mark.parametrize("for_all", [False, True])
@pytest.mark.parametrize("text", VARYING)
def test_a_byte_that_changes_on_the_way_never_changes_a_mean_in_silence(text: str, for_all: bool) -> None:
    """Of messages whose sizes vary, and of positions at which the ranks' values are added."""
    one = bucket(0, (1200,))
    whole = damaged_step(text, one, 2.0, for_all)
    found = [damaged_step(text, one, number / 24 + 0.01, for_all) for number in range(24)]
    assert all(isinstance(step, str) or step == whole for step in found), found
    assert sum(isinstance(step, str) and "damaged on the way" in step for step in found) >= 12, found


def damaged_step(text: str, one: Any, at: float, for_all: bool) -> object:
    """The means of 2 ranks, or the error that ended the step. ``at`` 1 or more: nothing is damaged."""
    codec = text.removesuffix(" sharded")

    def each(communicator: Communicator) -> list[float]:
        through = Damaging(communicator, at, for_all) if at < 1 else communicator
        rank = communicator.rank
        aggregator = made(codec, through) if codec == text else build_sharded(codec, through)
        x = gradient(rank, 0, one)
        exchange = aggregator.open(one).prepare(x, (8.0,), Key(1, 0, 0, rank), torch.float32).send(8.0)
        mean = torch.zeros(len(x) // 2 if codec != text else len(x))
        exchange.mean_into(mean)
        return [float(value) for value in mean]

    try:
        return SimulatedWorld(2, timeout_seconds=5.0).run(each)
    except ValueError as error:
        return str(error)
