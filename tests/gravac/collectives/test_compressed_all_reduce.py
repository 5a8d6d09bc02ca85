"""The compressed all-reduce: shards of blocks, averaged by their owners, rounded twice, and nothing lost."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gravac.aggregators import Aggregator, build
from gravac.collectives import ALONE, CompressedAllReduce, Network, Workload, choose
from gravac.collectives.simulated import SimulatedWorld
from gravac.compressors import COMPRESSORS, Key
from gravac.compressors import build as build_codec
from tests.support.maths.aggregator_checks import aggregate, bucket, world
from tests.support.maths.checks import KEY, vector

CODECS = (
    *(
        "nearest:levels=15,block=16",
        "nearest:levels=7,block=5",
        "nearest:levels=3",
        "dither:levels=5,block=7",
    ),
    *("blocksign:block=16", "qsgd:bits=3,block=6", "qsgd:bits=4,block=20", "int8:block=24"),
    *("int4:block=32", "twobit:block=6", "bf16", "fp16"),
    *("nearest:levels=3,block=64,coding=huffman", "dither:levels=5,block=7,coding=huffman"),
)


def one_step(size: int, codec: str, xs: list[Tensor], step: int = 0) -> list[tuple[Tensor, Tensor]]:
    """The mean and what was sent, on each rank."""
    one = bucket(0, (xs[0].numel(),))

    def each(aggregator: Aggregator) -> tuple[Tensor, Tensor]:
        rank = aggregator.communicator.rank
        return aggregate(aggregator, one, xs[rank], 4.0, Key(1, step, 0, rank))

    return world(size, f"{codec} by compressed-all-reduce", each)  # type: ignore[return-value]


@pytest.mark.parametrize("text", CODECS)
@settings(deadline=None, max_examples=15)
@given(
    numel=st.integers(1, 700),
    blocks=st.integers(1, 5),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(["gauss", "heavy", "zero", "one_hot"]),
)
def test_a_divided_payload_decodes_to_the_same(
    text: str, numel: int, blocks: int, seed: int, kind: str
) -> None:
    codec = build_codec(text)
    block = codec.block_of(1.0)
    assert block is not None
    whole = codec.compress(vector(kind, numel, seed), 1.0, KEY, torch.float32)
    pieces = codec.divide(whole, blocks * block, torch.float32)
    assert [piece.numel for piece in pieces[:-1]] == [blocks * block] * (len(pieces) - 1)
    for piece in pieces:  # as it arrives
        if codec.traits.fixed_size:
            assert piece.nbytes == codec.wire_bytes(piece.numel, 1.0, torch.float32)
    arrived = [codec.layout(piece.numel, 1.0, torch.float32).unpack(piece.pack(), KEY) for piece in pieces]
    assert torch.equal(torch.cat([codec.decode(piece) for piece in arrived]), codec.decode(whole))


@settings(deadline=None, max_examples=40)
@given(
    numel=st.integers(1, 700),
    ranks=st.sampled_from([1, 2, 3, 5]),
    text=st.sampled_from(CODECS),
    kind=st.sampled_from(["gauss", "heavy", "zero", "one_hot"]),
)
def test_nothing_is_lost(numel: int, ranks: int, text: str, kind: str) -> None:
    """The mean is that of what the ranks count as sent, the same bits on all of them, for any size."""
    xs = [vector(kind, numel, rank) for rank in range(ranks)]
    done = one_step(ranks, text, xs)
    for mean, _ in done:
        assert torch.equal(mean, done[0][0])
    sent = torch.stack([sent for _, sent in done]).double().mean(0)
    largest = max(float(sent.abs().max()) for _, sent in done)
    assert float((done[0][0].double() - sent).abs().max()) <= 1e-6 * largest * ranks + 1e-30


def test_the_mean_is_of_two_roundings() -> None:
    """Twice to the nearest of three levels, by hand: with blocks of 2, the mean of (6, 0) and (2, 0) is (4, 0)."""
    xs = [torch.tensor([6.0, 0.0, 1.0, 1.0]), torch.tensor([2.0, 0.0, 1.0, -1.0])]
    (mean, first), (again, second) = one_step(2, "nearest:levels=3,block=2", xs)
    assert mean.tolist() == again.tolist() == [4.0, 0.0, 1.0, 0.0]
    assert first.tolist() == xs[0].tolist()
    assert second.tolist() == xs[1].tolist()


def test_the_owner_keeps_the_error_of_the_mean() -> None:
    """Two signs cancel each other: their mean, 0, has no sign of its own, and the owner takes over what that adds."""
    xs = [torch.tensor([3.0, 3.0, 1.0, 1.0]), torch.tensor([1.0, -3.0, 1.0, 1.0])]
    (mean, first), (_, second) = one_step(2, "blocksign:block=2", xs)
    # Sent: (3, 3) and (2, -2), of which the mean is (2.5, 0.5), and its mean magnitude 1.5.
    assert mean.tolist() == [1.5, 1.5, 1.0, 1.0]
    assert first.tolist() == [3.0 - 2 * 1.0, 3.0 + 2 * 1.0, 1.0, 1.0]
    assert second.tolist() == [2.0, -2.0, 1.0, 1.0]


def test_sizes_that_vary_are_exchanged_first() -> None:
    """Ranks and shards differ in what they take: the means are those of the same codec with a fixed size."""
    xs = [vector(kind, 40_000, rank) for rank, kind in enumerate(("gauss", "one_hot", "heavy"))]
    xs[0][:20_000] = 0.0
    fixed, coded = one_step(3, "nearest:levels=3", xs), one_step(3, "nearest:levels=3,coding=huffman", xs)
    for (mean, sent), (same, alike) in zip(fixed, coded, strict=True):
        assert torch.equal(mean, same)
        assert torch.equal(sent, alike)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_reaches_every_rank(bad: float) -> None:
    xs = [vector("gauss", 300, rank) for rank in range(3)]
    xs[1][250] = bad
    for mean, _ in one_step(3, "nearest:levels=7,block=16", xs):
        assert not mean[240:256].isfinite().all()
        assert mean[:240].isfinite().all()


@pytest.mark.parametrize("numel", [1, 50, 400])
def test_a_rank_without_a_payload_sends_as_many_bytes(numel: int) -> None:
    one = bucket(0, (numel,))

    def each(aggregator: Aggregator) -> tuple[Tensor, int]:
        rank = aggregator.communicator.rank
        x, key, dtype = vector("gauss", numel, rank), Key(1, 0, 0, rank), torch.float32
        if rank == 1:
            draft = aggregator.open(one).blank(4.0, key, dtype, x.device, 0.0)
        else:
            draft = aggregator.open(one).prepare(x, (4.0,), key, dtype)
        flight = draft.send(4.0)
        mean = torch.empty(numel)
        flight.mean_into(mean)
        return mean, flight.payload_bytes

    found: list[tuple[Tensor, int]] = world(3, "int8:block=8 by compressed-all-reduce", each)  # type: ignore[assignment]
    expected = (vector("gauss", numel, 0) + vector("gauss", numel, 2)) / 3
    for mean, nbytes in found:
        assert nbytes == found[0][1]
        assert float((mean - expected).abs().max()) < 0.03 * float(expected.abs().max() + 1)


@pytest.mark.parametrize("text", ["nearest:levels=7", "nearest:levels=3", "dither:levels=5", "blocksign"])
def test_residuals_stop_growing(text: str) -> None:
    """The owner's share of the error passes through its own rounding again and must not build up."""
    ranks, numel = 5, 640
    left, one, sizes = [torch.zeros(numel) for _ in range(ranks)], bucket(0, (numel,)), []
    for step in range(60):
        xs = [old + vector("gauss", numel, 100 * step + rank) for rank, old in enumerate(left)]

        def each(aggregator: Aggregator, xs: list[Tensor] = xs, step: int = step) -> tuple[Tensor, Tensor]:
            rank = aggregator.communicator.rank
            return aggregate(aggregator, one, xs[rank], 4.0, Key(1, step, 0, rank))

        done: list[tuple[Tensor, Tensor]] = world(ranks, f"{text} by compressed-all-reduce", each)  # type: ignore[assignment]
        left = [x - sent for x, (_, sent) in zip(xs, done, strict=True)]
        sizes.append(sum(float(residual.norm()) for residual in left))
    assert max(sizes[40:]) < 1.5 * max(sizes[20:40])


def test_bytes_do_not_grow_with_the_ranks() -> None:
    numel, codec = 1 << 20, build_codec("nearest:levels=7")
    payload = codec.wire_bytes(numel, 10.0, torch.float32)
    for ranks in (2, 4, 8, 64):
        load = Workload(codec, numel, 10.0, torch.float32, ranks)
        link = CompressedAllReduce(ALONE).link_bytes(load)
        assert link == pytest.approx(2 * (ranks - 1) / ranks * payload, rel=0.01)


def test_which_codecs_it_takes() -> None:
    taken = {name for name in COMPRESSORS if CompressedAllReduce.fits(build_codec(name))}
    assert taken == {"nearest", "blocksign", "twobit", "int8", "int4", "bf16", "fp16"}
    assert CompressedAllReduce.fits(build_codec("dither:levels=5"))
    # Their errors, rounded twice, would make residuals grow without end.
    for text in (
        "dither:levels=3",
        "dither",
        "dither-subtractive:levels=7",
        "qsgd:bits=2",
        "qsgd:bits=8,norm=l2",
        "qsgd-elias",
    ):
        assert not CompressedAllReduce.fits(build_codec(text))
    with pytest.raises(
        ValueError, match=r"needs a quantizer .* which compressor='topk' is not: choose gather"
    ):
        build("topk", ALONE, "compressed-all-reduce")
    topk = build_codec("topk")
    payload = topk.compress(torch.ones(9), 3.0, KEY, torch.float32)
    with pytest.raises(ValueError, match="payloads of topk cannot be divided"):
        topk.divide(payload, 3, torch.float32)


def test_when_it_is_chosen() -> None:
    slow = Network(latency_seconds=1e-4, bytes_per_second=12.5e6)
    for ranks in (4, 8, 64):
        load = Workload(build_codec("nearest:levels=7"), 6_500_000, 10.0, torch.float32, ranks)
        assert choose(slow, load).name == "compressed-all-reduce"
    # Too small for a block per rank: a gather sends less.
    load = Workload(build_codec("nearest:levels=7"), 100, 10.0, torch.float32, 4)
    assert choose(Network(latency_seconds=0.0, bytes_per_second=1e3), load).name == "gather"


def test_a_step_that_another_rank_is_not_at_is_refused() -> None:
    def each(network: object) -> None:
        rank = network.rank  # type: ignore[attr-defined]
        codec, key, x = build_codec("int8:block=8"), Key(1, 7 + 2 * rank, 0, rank), torch.randn(100)
        payload, layout = codec.compress(x, 4.0, key, x.dtype), codec.layout(100, 4.0, x.dtype)
        CompressedAllReduce(network).exchange(layout, payload, x, key)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="the ranks are out of step"):
        SimulatedWorld(2).run(each)
