"""The cost model of collectives has the figures of its sources."""

import math

import pytest

from gravac.collectives import (
    Network,
    cost,
)


def test_the_figures_of_ar_topk() -> None:
    """Tyagi and Swany 2023: 8 ranks, 1 ms, 1 Gbit/s, ResNet50 (102.2 MB), ratios 0.1 and 0.001; half is places."""
    network = Network(latency_seconds=1e-3, bytes_per_second=125e6)
    for ratio, gather, ring in ((0.1, 1148, 405), (0.001, 14.4, 21)):
        part = round(102.2e6 * ratio)
        # They take a tree's latency for the all-gather, 3 messages instead of the ring's 7.
        assert 1e3 * cost.all_gather(network, 8, 2 * part) - 4 == pytest.approx(gather, rel=0.01)
        shared = cost.broadcast(network, 8, part) + cost.all_reduce(network, 8, part)
        assert 1e3 * shared == pytest.approx(ring, rel=0.01)


@pytest.mark.parametrize("ranks", [2, 3, 4, 16, 64])
def test_a_gather_loses_to_a_dense_ring_above_twice_its_factor(ranks: int) -> None:
    """n > 2c, at no latency."""
    network, dense = Network(latency_seconds=0.0, bytes_per_second=1e8), 1 << 24
    ring = cost.all_reduce(network, ranks, dense)
    for factor in (1, 2, 5, 10, 40):
        gathered = cost.all_gather(network, ranks, dense // factor)
        assert (gathered > ring * 1.0001) == (ranks > 2 * factor)


def test_trees() -> None:
    for ranks in range(1, 20):
        for root in range(ranks):
            sent = [cost.children(ranks, rank, root) for rank in range(ranks)]
            assert sum(sent) == ranks - 1  # everybody else hears it once
            assert max(sent) == sent[root] == cost.depth(ranks)


def test_a_small_sum_takes_the_messages_that_doubling_takes() -> None:
    counted = {ranks: cost.small_sum_messages(ranks) for ranks in (1, 2, 4, 5, 8, 12, 64, 1000)}
    assert counted == {1: 0, 2: 2, 4: 6, 5: 4, 8: 3, 12: 5, 64: 6, 1000: 11}


@pytest.mark.parametrize(
    ("latency", "speed"), [(-1.0, 1.0), (math.nan, 1.0), (0.0, 0.0), (0.0, math.inf), (0.0, math.nan)]
)
def test_networks_that_cannot_be(latency: float, speed: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        Network(latency_seconds=latency, bytes_per_second=speed)
