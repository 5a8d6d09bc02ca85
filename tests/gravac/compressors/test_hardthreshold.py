"""One hard threshold for the whole model and all ranks: by the rule, and learned."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from gravac.aggregators import Aggregator, build
from gravac.collectives import ALONE, Communicator
from gravac.compressors import Key
from gravac.compressors import build as build_codec
from gravac.compressors.sparse.hardthreshold import (
    HardThreshold,
    WarmedThreshold,
    first_bin,
    histogram_window,
    kth_magnitude,
    magnitude_histogram,
)
from tests.gravac.compressors.test_scales import uneven
from tests.support.maths.aggregator_checks import BUCKETS, Bucket, average_statistics, bucket
from tests.support.maths.checks import KEY, LECTURE, error, sent, vector

ELEMENTS = sum(sum(one.numels) for one in BUCKETS)
NET = tuple(bucket(number, (60, 100), (60,), (100, 40)) for number in range(4))
"""Layers of unlike magnitude, four buckets."""


def sent_and_left(
    aggregator: Aggregator, buckets: Sequence[Bucket], step: int, cf: float, scale: float = 1.0
) -> tuple[float, float, int]:
    """A step of one rank: the least magnitude sent, the largest one left, elements sent, over its buckets."""
    least, most, count, rank = math.inf, 0.0, 0, aggregator.communicator.rank
    for one in buckets:
        x = uneven(rank, step, one) * scale
        draft = aggregator.open(one).prepare(x, (cf,), Key(3, step, one.number, rank), torch.float32)
        flight = draft.send(cf)
        flight.work.wait()
        sent = flight.codec.decode(flight.payload) != 0
        least, most = min([least, *x[sent].abs().tolist()]), max([most, *x[~sent].abs().tolist()])
        count += int(sent.sum())
    average_statistics(aggregator)
    aggregator.commit()
    return least, most, count


def worlds(size: int, text: str, elements: int, each: object) -> list[Tensor]:
    from gravac.collectives.simulated import SimulatedWorld

    def body(communicator: Communicator) -> object:
        return each(build(text, communicator, elements=elements))  # type: ignore[operator]

    return SimulatedWorld(size).run(body)  # type: ignore[return-value]


def test_the_rule_takes_k_from_the_whole_model() -> None:
    """λ = 1/(2√k), k = d/CF: equal in a bucket of 5 elements and in one of 492, on all ranks."""
    level = 0.5 / math.sqrt(int(ELEMENTS / 4.0))
    for least, most, count in worlds(
        3, "hardthreshold", ELEMENTS, lambda one: sent_and_left(one, BUCKETS, 0, 4.0, 0.05)
    ):
        assert most < level <= least < math.inf
        assert least < 1.5 * level  # both sides near it, else nothing was tested
        assert most > level / 1.5
        assert count > 0
    codec = build_codec("hardthreshold").for_model(10_000)
    assert codec.bound(500, 4.0).absolute == pytest.approx(500 * 0.25 / 2500)
    assert build_codec("hardthreshold:threshold=0.5").for_model(9).bound(4, 4.0).absolute == 1.0


@pytest.mark.parametrize("size", [1, 3])
def test_the_learned_threshold_is_one_for_the_model_and_sends_what_was_asked(size: int) -> None:
    """Over layers, buckets and ranks that differ in magnitude, d/CF elements a rank."""
    steps, cf = 4, 20.0

    def each(aggregator: Aggregator) -> list[tuple[float, float, int]]:
        scale = 1.0 + 2.0 * aggregator.communicator.rank
        return [sent_and_left(aggregator, NET, step, cf, scale) for step in range(steps + 6)]

    ranks = worlds(size, f"hardthreshold-warmup:steps={steps}", 0, each)
    for step in range(1, steps + 6):  # from the second step on
        least = min(rank[step][0] for rank in ranks)
        most = max(rank[step][1] for rank in ranks)
        assert most < least
    sent = sum(rank[step][2] for rank in ranks for step in range(steps + 1, steps + 6))
    target = size * 5 * sum(sum(one.numels) for one in NET) / cf
    assert sent == pytest.approx(target, rel=0.05)


def test_ranks_learn_the_same_and_resume_with_it() -> None:
    def each(aggregator: Aggregator) -> tuple[str, dict[str, Tensor]]:
        for step in range(3):
            sent_and_left(aggregator, BUCKETS, step, 4.0, 1.0 + aggregator.communicator.rank)
        other = build("hardthreshold-warmup", aggregator.communicator)
        other.load_state_dict(aggregator.state_dict())
        assert other.state_digest() == aggregator.state_digest() != ""
        return aggregator.state_digest(), aggregator.state_dict()

    ranks = worlds(3, "hardthreshold-warmup", ELEMENTS, each)
    assert len({digest for digest, _ in ranks}) == 1  # type: ignore[misc]
    assert [list(state) for _, state in ranks] == [["4.0"]] * 3  # type: ignore[misc]
    assert build("hardthreshold-warmup", ALONE).state_digest() == ""


def learn(codec: WarmedThreshold, x: Tensor, *cfs: float) -> None:
    for part in x.chunk(3):
        codec.observe(part, cfs)
    codec.apply_mean_statistics(codec.local_statistics())
    codec.commit()


def test_the_mean_of_the_kth_largest_magnitudes_is_learned_and_stored() -> None:
    codec, levels = WarmedThreshold(steps=3), []
    for step in range(4):
        x = vector("gauss", 30_000, step) * (1.2**step)
        learn(codec, x, 20.0)
        levels.append(float(x.abs().topk(1500).values[-1]))
    state = codec.state_dict()
    assert float(state["20.0"][1] / state["20.0"][0]) == pytest.approx(sum(levels[1:]) / 3, rel=2e-3)
    learn(codec, 100 * x, 20.0)
    assert torch.equal(codec.state_dict()["20.0"], state["20.0"])  # the warm-up is over
    assert len(codec.local_statistics()) == len(
        WarmedThreshold(steps=3).local_statistics()
    )  # the tick's size never changes
    x = 2 * vector("gauss", 1000, 9)
    sent = codec.compress(x, 20.0, KEY, torch.float32).values
    level = float(state["20.0"][1] / state["20.0"][0])
    assert float(sent.abs().min()) >= level * (1 - 1e-6)
    assert sent.numel() == int((x.abs() >= level).sum())
    again = WarmedThreshold(steps=3)
    again.load_state_dict(state)
    assert torch.equal(again.compress(x, 20.0, KEY, torch.float32).values, sent)
    # Another CF is learned again; until a step is known, a bucket sends its share.
    assert codec.compress(x, 10.0, KEY, torch.float32).values.numel() == 100
    learn(codec, vector("gauss", 30_000, 1), 10.0, 20.0)
    assert codec.compress(
        vector("gauss", 30_000, 1), 10.0, KEY, torch.float32
    ).values.numel() == pytest.approx(3000, rel=0.01)


def test_wrong_states_are_named() -> None:
    codec = WarmedThreshold()
    for state in ({"a": torch.ones(3)}, {"4.0": torch.ones(2)}):
        with pytest.raises(
            ValueError, match=r"hardthreshold-warmup: state of '.*' must be three numbers of a CF"
        ):
            codec.load_state_dict(state)


def test_nothing_is_learned_from_a_rolled_back_step() -> None:
    codec = WarmedThreshold(steps=1)
    codec.observe(vector("gauss", 100), (10.0,))
    codec.apply_mean_statistics(codec.local_statistics())
    codec.rollback()
    assert codec.state_dict() == {}
    codec.observe(vector("gauss", 100), (10.0,))  # a rank failed: no learn
    codec.commit()
    assert codec.state_dict() == {}
    learn(codec, torch.zeros(100), 10.0)
    assert codec.state_dict() == {}
    learn(codec, vector("gauss", 100), 10.0)
    assert codec.state_dict()["10.0"][0] == 0


@pytest.mark.parametrize("about", [1e-40, 1e-3, 1.0, 3e38])
def test_a_window_of_a_histogram_cuts_off_at_its_ends(about: float) -> None:
    for scale in (1e-42, 1e-12, 1e-3, 1.0, 1e15, 1e37):
        x = vector("gauss", 2000) * scale
        counts = magnitude_histogram(x)
        whole = kth_magnitude(counts.tolist(), 40)
        exact = float(x.abs().topk(40).values[-1])
        assert whole == pytest.approx(exact, rel=0.05, abs=1e-38)
        above, *near = histogram_window(counts, about)
        level = kth_magnitude(near, 40, first_bin(about), above)
        low, high = min(about / 2.2, 2.0**126), about * 2.2
        assert level == pytest.approx(min(max(whole, low), high), rel=0.3, abs=1e-37)
        assert math.isfinite(level)


def test_hard_threshold() -> None:
    codec = HardThreshold(threshold=7.0)
    assert error(codec, LECTURE) == 13  # 7 itself is sent
    assert int((sent(codec, LECTURE) != 0).sum()) == 6
    assert codec.bound(8, 1.0).absolute == 392
    assert torch.equal(sent(HardThreshold(threshold=3.5), LECTURE / 2), sent(codec, LECTURE) / 2)
    once = sent(HardThreshold(threshold=20.0), LECTURE)
    assert torch.equal(sent(HardThreshold(threshold=20.0), sent(codec, LECTURE).float()), once)


@pytest.mark.parametrize(
    ("k", "level"),
    [(11174, 0.0047300), (6166, 0.0063675), (11220, 0.0047203), (11436, 0.0046756), (6258, 0.0063205)],
)
def test_threshold_rule(k: int, level: float) -> None:
    assert HardThreshold().level(k, 1.0) == pytest.approx(level, abs=5e-8)
    assert HardThreshold().level(1000 * k, 1000.0) == pytest.approx(level, abs=5e-8)


@pytest.mark.parametrize("seed", range(5))
def test_hard_threshold_has_the_least_total_error_of_a_run(seed: int) -> None:
    """Same number of elements over the whole sequence (Sahu et al.)."""
    steps, n, k = 50, 200, 5
    generator = torch.Generator().manual_seed(seed)
    scales = torch.randn(steps, 1, generator=generator).exp()
    sequence = torch.randn(steps, n, generator=generator) * scales
    level = float(sequence.abs().flatten().sort(descending=True).values[steps * k - 1])
    hard = sum(error(HardThreshold(threshold=level), x) for x in sequence)
    top = sum(error(build_codec("topk"), x, n / k) for x in sequence)
    assert hard < top
