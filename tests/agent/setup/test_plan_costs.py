"""What the plans of a policy cost in a job, by the cost model."""

from dataclasses import replace

import pytest
import torch

from gravac.collectives import Network
from gravac.compressors import build
from gravac.compressors.base import kept_count
from gravac.kernels.device import rounded, tiled
from gravac.kernels.device.owned import OwnedLayout
from gravac.policies import AutoPolicy, Plan
from gravac.predict.exchange import BUCKET_BYTES
from gravac_agent.setup.plan_costs import ShardedGradient, plan_costs, without_waits

NETWORK = Network(latency_seconds=1e-4, bytes_per_second=12.5e6)


def test_plans_that_would_make_a_device_wait_are_left_out() -> None:
    waits = Plan("dither-subtractive:levels=3,coding=huffman", 17.3)
    others = Plan(None, 1.0), Plan(None, 10.0), Plan("nearest:levels=7", 10.1), Plan("powersgd", 20.0)
    assert without_waits((*others, waits)) == others


def test_every_plan_has_its_bytes_and_seconds() -> None:
    plans = AutoPolicy().plans("topk+bf16")
    found = {
        Plan(cost.codec, cost.cf): cost
        for cost in plan_costs(plans, "topk+bf16", 1_000_000, 4, NETWORK, "auto")
    }
    assert tuple(found) == plans
    dense, seven = found[Plan(None, 1.0)], found[Plan("nearest:levels=7", 10.1)]
    assert dense.payload_bytes == 4_000_000
    assert dense.link_bytes == pytest.approx(1.5 * 4_000_000), "a ring all-reduce: 2 (n-1)/n"
    coded = 4_000_000 / 10.1
    assert seven.payload_bytes == pytest.approx(1.25 * coded, rel=0.02), "its own, and the mean of its shard"
    assert seven.link_bytes == pytest.approx(1.5 * coded, rel=0.02), "a compressed all-reduce: 2 (n-1)/n"
    assert dense.seconds == pytest.approx(dense.messages * 1e-4 + dense.link_bytes / 12.5e6, abs=1e-6)
    assert (dense.decoded, found[Plan(None, 10.0)].decoded, seven.decoded) == (1, 4, 3), (
        "all-reduce, gather, two rounds"
    )


def test_whole_messages_of_a_device_have_sizes_of_their_own() -> None:
    plans = (Plan(None, 1.0), Plan("topk+twobit", 36.0), Plan("qsgd:bits=4", 8.0))
    plain, whole = (
        plan_costs(plans, "topk+bf16", 20_000_000, 2, NETWORK, "auto", whole=dtype)
        for dtype in (None, torch.float32)
    )
    assert (plain[0], plain[2]) == (whole[0], whole[2])
    buckets = [tiled.TiledLayout(5_000_000, kept_count(5_000_000, 36.0), "twobit")] * 4
    assert whole[1].payload_bytes == pytest.approx(sum(one.nbytes for one in buckets), rel=1e-3)
    assert whole[1].link_bytes == pytest.approx(whole[1].payload_bytes, rel=1e-6)
    assert 1.02 < whole[1].payload_bytes / plain[1].payload_bytes < 1.1


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("codec", ["bf16", "int8", "nearest:levels=7"])
def test_messages_of_every_element_cost_what_is_sent(codec: str, ranks: int) -> None:
    """Gathered between two ranks, in shards among eight."""
    plans = (Plan(codec, 2.0),)
    (plain,), (whole,) = (
        plan_costs(plans, "topk+bf16", 20_000_000, ranks, NETWORK, "auto", whole=dtype)
        for dtype in (None, torch.float32)
    )
    rounding = build(codec).message_rounding(2.0, torch.float32)
    assert rounding is not None
    layout = rounded.RoundedLayout(BUCKET_BYTES // 4, ranks, ranks > 2, rounding)
    buckets = 20_000_000 / layout.numel
    assert whole.payload_bytes == pytest.approx(buckets * layout.payload_bytes, rel=1e-6)
    assert whole.link_bytes == pytest.approx(buckets * layout.link_bytes, rel=1e-5)
    assert 0.999 < whole.payload_bytes / plain.payload_bytes < 1.005
    assert whole.payload_bytes != plain.payload_bytes


@pytest.mark.parametrize(("ranks", "tile"), [(8, 4096), (500, 512)])
def test_messages_to_owners_cost_what_is_sent(ranks: int, tile: int) -> None:
    plans = (Plan("topk+twobit", 16.6),)
    (plain,), (whole,) = (
        plan_costs(plans, "topk+twobit", 20_000_000, ranks, NETWORK, "owners", whole=dtype)
        for dtype in (None, torch.float32)
    )
    numel = BUCKET_BYTES // 4
    layout = OwnedLayout(numel, -(-kept_count(numel, 16.6) // ranks), "twobit", ranks, 0, tile)
    assert whole.payload_bytes == pytest.approx(20_000_000 / numel * layout.payload_bytes, rel=1e-6)
    assert whole.link_bytes == pytest.approx(20_000_000 / numel * layout.link_bytes, rel=1e-3)
    assert 1.0 < whole.payload_bytes / plain.payload_bytes < 1.25


@pytest.mark.parametrize(("by_all_reduce", "rounds"), [(False, 0.75), (True, 1.5)])
def test_shards_cost_a_reduce_scatter(by_all_reduce: bool, rounds: float) -> None:
    plans = (Plan(None, 1.0), Plan("int8", 4.0), Plan("blockrandomk", 10.0))
    dense, coded, summed = plan_costs(
        plans, "topk", 1_000_000, 4, NETWORK, "auto", ShardedGradient(modules=10, by_all_reduce=by_all_reduce)
    )
    assert dense.payload_bytes == 4_000_000
    assert dense.link_bytes == rounds * 4_000_000, "gloo's reduce-scatter is an all-reduce"
    assert coded.link_bytes == pytest.approx(0.75 * 1_000_000, rel=0.03), "an all-to-all is none"
    assert summed.link_bytes == pytest.approx(rounds * 400_000, rel=0.01)
    assert dense.seconds == pytest.approx(dense.messages * 1e-4 + dense.link_bytes / 12.5e6, abs=1e-6)
    assert dense.messages - coded.messages == (30 if by_all_reduce else 0)


def test_ranks_that_share_a_link_pay_for_each_other() -> None:
    """Two hosts with eight ranks each: an all-to-all was predicted 64 / 15 times too fast, and a ring was not."""
    shared = replace(NETWORK, ranks_per_link=8)
    plans = (Plan(None, 1.0), Plan(None, 10.0), Plan("nearest:levels=7", 10.1))
    arguments = (plans, "topk+bf16", 1_000_000, 16)
    names = ("gather", "compressed-all-reduce")
    for name, changed in zip(names, (1.0, (64 / 15 + 1) / 2), strict=True):
        own, together = (plan_costs(*arguments, network, name)[2] for network in (NETWORK, shared))
        assert together.link_bytes / own.link_bytes == pytest.approx(changed, rel=0.01), name
        seconds = together.messages * 1e-4 + together.link_bytes / 12.5e6
        assert together.seconds == pytest.approx(seconds, abs=1e-6)
    for number, own in enumerate(plan_costs(*arguments, NETWORK, "gather")):
        assert plan_costs(*arguments, shared, "gather")[number] == own, "rings only"
    shards = ShardedGradient(modules=10, by_all_reduce=False)
    every = (Plan(None, 1.0), Plan("int8", 4.0))
    common, alone = (
        [one.link_bytes for one in plan_costs(every, "topk", 1_000_000, 16, network, "auto", shards)]
        for network in (shared, NETWORK)
    )
    assert common[0] == alone[0]
    assert common[1] / alone[1] == pytest.approx(64 / 15, rel=0.01)


def test_without_a_measured_network_there_are_no_seconds() -> None:
    found = plan_costs((Plan(None, 1.0), Plan(None, 10.0)), "topk", 1000, 2, None, "gather")
    assert [each.seconds for each in found] == [None, None]


def test_rounds_are_estimated_and_what_cannot_be_built_is_left_out() -> None:
    plans = (Plan(None, 20.0), Plan("nonsense", 10.0))
    found = plan_costs(plans, "powersgd", 1_000_000, 2, NETWORK, "auto")
    assert [(each.codec, each.payload_bytes) for each in found] == [(None, 200_000)]
