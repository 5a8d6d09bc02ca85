"""Owners: each keeps its elements in all steps, nothing is lost, and the bytes on a link do not grow with the ranks."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gravac.aggregators import Aggregator, OneShot
from gravac.collectives import Gather, Owners, Workload
from gravac.collectives.communicator import ALONE
from gravac.collectives.cost import ring_bytes
from gravac.collectives.owners import Shards
from gravac.compressors import Key
from gravac.compressors import build as build_codec
from gravac.memories import Bucket, Memory
from gravac.memories import build as build_memory
from gravac.memories.states import reshard
from tests.gravac.collectives.test_base import one_step
from tests.support.maths.aggregator_checks import bucket, made, world
from tests.support.maths.checks import vector

BUCKETS = Bucket(0, ("a", "b"), (900, 101)), Bucket(1, ("c",), (517,))
SKIPPED = (2, 3, 21, 42)
"""Steps that do not count."""


def gradient(rank: int, step: int, one: Bucket) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + one.number)
    n = sum(one.numels)
    return torch.randn(n, generator=generator) + vector("heavy", n, one.number)


def train(
    aggregator: Aggregator, memory: Memory, steps: range, in_place: bool
) -> list[dict[str, tuple[Tensor, Tensor, Tensor]]]:
    """After each step, by parameter: what the mean was, the residual, and the gradient; the first two 0 if skipped."""
    rank, found = aggregator.communicator.rank, []
    for step in steps:
        counts, flights = step not in SKIPPED, []
        for one in BUCKETS:
            g, part = gradient(rank, step, one), memory.open(one)
            part.gradient_stays = in_place
            key = Key(0, step, one.number, rank)
            draft = aggregator.open(one).prepare(part.compensate(g), (16.0,), key, torch.float32)
            flight = draft.send(16.0)
            part.update(flight.codec, flight.payload)
            flights.append((one, part, g, flight))
        held: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        for one, part, g, flight in flights:
            flight.work.wait()
            mean = torch.empty_like(g)
            flight.mean_into(mean)
            part.resolve(g, counts)
            for (name, arrived), (_, came) in zip(
                one.split(mean * counts), one.split(g * counts), strict=True
            ):
                held[name] = arrived, arrived, came
        (memory.commit if counts else memory.rollback)()
        state = memory.state_dict()
        found.append({name: (a, state.get(name, torch.zeros_like(a)), g) for name, (a, _, g) in held.items()})
    return found


def assert_conserved(
    ranks: list[list[dict[str, tuple[Tensor, Tensor, Tensor]]]], before: dict[str, Tensor]
) -> None:
    """After each step, the means so far and the mean residual are the mean of what came and of the residual before."""
    for name in ("a", "b", "c"):
        came = before.get(name, torch.zeros(1)).double()
        sent = torch.zeros(1, dtype=torch.float64)
        for each in zip(*ranks, strict=True):
            of_ranks = [one[name] for one in each]
            assert all(torch.equal(arrived, of_ranks[0][0]) for arrived, _, _ in of_ranks)
            sent = sent + of_ranks[0][0].double()
            came = came + torch.stack([g.double() for _, _, g in of_ranks]).mean(0)
            held = torch.stack([residual.double() for _, residual, _ in of_ranks]).mean(0)
            assert float((sent + held - came).abs().max()) <= 2e-5 * float(came.abs().max())


@pytest.mark.parametrize(
    ("ranks", "codec", "in_place", "steps"),
    [
        (8, "topk", False, 8),
        (8, "topk+bf16", True, 8),
        (8, "topk+twobit", False, 8),
        (16, "topk+twobit", True, 6),
        (32, "topk+twobit", True, 5),
    ],
)
def test_each_step_conserves(ranks: int, codec: str, in_place: bool, steps: int) -> None:
    def each(aggregator: Aggregator) -> object:
        return train(aggregator, build_memory("residual"), range(steps), in_place)

    assert_conserved(world(ranks, f"{codec} by owners", each), {})  # type: ignore[arg-type]


def test_other_numbers_of_ranks_conserve_what_owners_hold() -> None:
    """8, 4 and again 8 ranks: sums of an old owner are an ordinary residual then."""
    before: dict[str, Tensor] = {}
    for number, ranks in enumerate((8, 4, 8)):
        states: dict[int, dict[str, Tensor]] = {}

        def each(aggregator: Aggregator, number: int = number) -> object:
            memory = build_memory("residual")
            memory.load_state_dict(before)  # noqa: B023
            found = train(aggregator, memory, range(20 * number, 20 * number + 4), False)
            states[aggregator.communicator.rank] = memory.state_dict()  # noqa: B023
            return found

        done = world(ranks, "topk+twobit by owners", each)
        assert_conserved(done, before)  # type: ignore[arg-type]
        before = reshard([states[rank] for rank in range(ranks)])
        assert float(before["c"].abs().max()) > 0.1


@pytest.mark.parametrize("ranks", [4, 16])
def test_an_element_has_the_same_owner_in_all_steps(ranks: int) -> None:
    """Two ranks have gradients. What another one counts as sent is what it took over: its own elements."""
    one, steps = bucket(3, (2000,)), 12

    def each(aggregator: Aggregator) -> Tensor:
        rank, touched = aggregator.communicator.rank, torch.zeros(2000, dtype=torch.bool)
        for step in range(steps):
            x = vector("gauss", 2000, 9 * step + rank) * (rank < 2)
            flight = aggregator.open(one).prepare(x, (8.0,), Key(5, step, 3, rank), torch.float32).send(8.0)
            touched |= flight.codec.decode(flight.payload) != 0
        return touched

    others: list[Tensor] = world(ranks, "topk by owners", each)[2:]  # type: ignore[assignment]
    assert all(int(touched.sum()) > 50 for touched in others)
    assert int(torch.stack(others).sum(0).max()) == 1


def test_another_bucket_is_dealt_otherwise() -> None:
    rows = torch.arange(125, dtype=torch.int32)
    keys = [Key(1, 0, number, 0) for number in range(3)]
    dealt = [Shards.of(1000, 8, key).positions(rows, 2) for key in keys]
    assert not any(torch.equal(one, other) for one, other in pairwise(dealt))


def test_half_of_what_waits_arrives_where_an_owner_sent() -> None:
    one = bucket(0, (1003,))

    def each(aggregator: Aggregator) -> tuple[Tensor, Tensor, int]:
        rank = aggregator.communicator.rank
        x = gradient(rank, 0, one)
        flight = aggregator.open(one).prepare(x, (8.0,), Key(1, 0, 0, rank), torch.float32).send(8.0)
        flight.senders = torch.full((1003,), 7, dtype=torch.uint8)
        mean = torch.empty(1003)
        flight.mean_into(mean)
        return mean, flight.senders, flight.of

    for mean, senders, of in world(8, "topk by owners", each):  # type: ignore[misc]
        assert of == 2
        assert torch.equal(senders, (mean != 0).to(torch.uint8))


def test_the_owner_takes_its_own_gradient_whole() -> None:
    """An element that no rank chose is sent, where the rest of the owner's shard is smaller."""
    n, ranks = 64, 4
    shards = Shards.of(n, ranks, Key(1, 0, 0, 0))
    own = shards.positions(torch.arange(16, dtype=torch.int32), 1)
    x = torch.full((n,), 10.0)
    x[own.long()] = torch.arange(16) * 1e-3  # far below all that rank 1 chooses of the whole

    def each(aggregator: Aggregator) -> Tensor:
        rank = aggregator.communicator.rank
        mine = x if rank == 1 else torch.zeros(n)
        flight = aggregator.open(bucket(0, (n,))).prepare(mine, (16.0,), Key(1, 0, 0, rank), torch.float32)
        mean = torch.empty(n)
        flight.send(16.0).mean_into(mean)
        return mean

    (mean, *_) = world(ranks, "topk by owners", each)
    assert isinstance(mean, Tensor)
    assert mean[own.long()].nonzero().squeeze(1).tolist() == [15]


CODECS = ["topk", "topk+bf16", "topk+int8", "topk+twobit"]


def link_bytes(kind: Callable[..., Gather | Owners], codec: str, numel: int, cf: float, ranks: int) -> int:
    return kind(ALONE).link_bytes(Workload(build_codec(codec), numel, cf, torch.float32, ranks))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("cf", [5.1, 16.6, 36.0])
@pytest.mark.parametrize("numel", [1_000_000, 6_500_000])
def test_bytes_on_a_link_do_not_grow_with_the_ranks(numel: int, cf: float, codec: str) -> None:
    """From 8 ranks on, where a gather has more. They are (n-1)/n of a whole, as those of a dense ring."""
    found = [link_bytes(Owners, codec, numel, cf, ranks) for ranks in (8, 16, 32, 64)]
    gathered = [link_bytes(Gather, codec, numel, cf, ranks) for ranks in (8, 16, 32, 64)]
    assert all(abs(one / fmean(found) - 1) < 0.1 for one in found)
    rings = [one / ring_bytes(4 * numel, ranks) for one, ranks in zip(found, (8, 16, 32, 64), strict=True)]
    assert max(rings) <= 1.1 * min(rings)
    assert all(one < other for one, other in zip(found, gathered, strict=True))
    assert gathered[-1] > 30 * found[-1]


def test_codecs_that_choose_and_round() -> None:
    assert all(Owners.fits(build_codec(codec)) for codec in CODECS)
    assert isinstance(made("topk+twobit by owners", ALONE), OneShot)
    assert not Owners.fits(build_codec("int8"))


def test_owners_choose_the_largest_of_their_own_elements() -> None:
    """The last of 251 elements has no row of its own on one of three ranks."""
    n, ranks, cf = 251, 3, 10.0
    for step in range(3):
        xs, shards = (
            [vector("heavy", n, 7 * step + rank) for rank in range(ranks)],
            Shards.of(n, ranks, Key(1, step, 0, 0)),
        )
        rows = torch.arange(shards.rows, dtype=torch.int32)
        chosen = torch.zeros(n, dtype=torch.bool)
        for rank, x in enumerate(xs):
            places, values = shards.read(x, rows, rank)
            chosen[places[values.abs().topk(-(-25 // ranks)).indices].long()] = True
        for x, (mean, sent) in zip(xs, one_step(ranks, "topk by shared", xs, cf, step), strict=True):
            assert torch.equal(sent, torch.where(chosen, x, 0.0))
            torch.testing.assert_close(mean, torch.where(chosen, torch.stack(xs).mean(0), 0.0))


def test_owners_of_equal_ranks_send_their_largest_elements() -> None:
    x = vector("heavy", 20_000)
    topk = build_codec("topk").decode(build_codec("topk").compress(x, 20.0, Key(0, 0, 0, 0), torch.float32))
    for mean, sent in one_step(4, "topk by owners", [x] * 4, 20.0):
        assert torch.equal(sent[sent != 0], x[sent != 0])
        sums_sent = int(((mean != 0) & (topk != 0)).sum())
        assert sums_sent > 0.93 * 1000  # a few do not fit their owner's share
        assert float(mean.square().sum()) > 0.99 * float(topk.square().sum())


def test_the_owner_takes_over_the_sums_it_does_not_send() -> None:
    """Two ranks, one element per shard: what the loser sent is in the owner's residual."""
    n, cf = 40, 20.0
    shards = Shards(n, 2, Key(1, 0, 0, 0).shared_seed() & (2**31 - 1))
    rows = torch.arange(shards.rows, dtype=torch.int32)
    owned = [shards.positions(rows, owner).tolist() for owner in range(2)]
    a, b, c, d = owned[0][3], owned[0][5], owned[1][2], owned[1][7]
    xs = [torch.zeros(n), torch.zeros(n)]
    xs[0][a], xs[0][c] = 5.0, 1.0
    xs[1][b], xs[1][d] = 3.0, 2.0
    (mean, first), (_, second) = one_step(2, "topk by owners", xs, cf)
    assert {at: float(mean[at]) for at in mean.nonzero().squeeze(1).tolist()} == {a: 2.5, d: 1.0}
    assert {at: float(first[at]) for at in first.nonzero().squeeze(1).tolist()} == {a: 5.0, b: -3.0, c: 1.0}
    assert {at: float(second[at]) for at in second.nonzero().squeeze(1).tolist()} == {c: -1.0, b: 3.0, d: 2.0}


@given(numel=st.integers(1, 500), ranks=st.integers(1, 9), seed=st.integers(0, 2**31 - 1))
def test_every_element_has_one_owner(numel: int, ranks: int, seed: int) -> None:
    shards = Shards(numel, ranks, seed)
    rows = torch.arange(shards.rows, dtype=torch.int32)
    x = torch.arange(1.0, numel + 1)
    read = [shards.read(x, rows, owner) for owner in range(ranks)]
    values = torch.cat([values for _, values in read])
    assert sorted(values[values > 0].tolist()) == x.tolist()
    assert int((values == 0).sum()) == shards.rows * ranks - numel < ranks
    for owner, (places, found) in enumerate(read):
        assert torch.equal(places, shards.positions(rows, owner))
        assert torch.equal(x[places.long()][found > 0], found[found > 0])


def clusters() -> Iterator[Tensor]:
    yield torch.arange(0, 4096)  # one layer
    yield torch.arange(0, 1 << 20, 256)  # one column
    yield torch.arange(0, 1 << 20, 255)
    yield torch.randperm(1 << 20, generator=torch.Generator().manual_seed(0))[:4096].sort().values


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
def test_clusters_are_dealt_out_evenly(ranks: int) -> None:
    for seed in range(3):
        shards, owners = Shards(1 << 20, ranks, seed), torch.empty(1 << 20, dtype=torch.int64)
        rows = torch.arange(shards.rows, dtype=torch.int32)
        for owner in range(ranks):
            owners[shards.positions(rows, owner).long()] = owner
        for places in clusters():
            counts = owners[places].bincount(minlength=ranks)
            fair = places.numel() / ranks
            assert float((counts - fair).abs().max()) < 5 * math.sqrt(fair)
