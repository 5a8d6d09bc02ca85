"""The norm of the mean raw gradient is found without the mean."""

import math

import pytest
import torch

from gravac.memories import Bucket
from gravac_agent.exchange.raw_mean import MOST_SAMPLED, SIZE, RawMeanMeter, mean_energies

RANKS = 4
NONE = (0.0,) * SIZE


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_the_norm_of_the_mean_is_found_without_it(correlation: float) -> None:
    """Over buckets of any size, sampled or whole; 1/4 of a rank's own energy for ranks that have nothing in common."""
    buckets = [Bucket(0, ("a",), (MOST_SAMPLED * 3 + 5,)), Bucket(1, ("b", "c"), (7, 500))]
    meters = [RawMeanMeter(wanted=True) for _ in range(RANKS)]
    draw = torch.Generator().manual_seed(3)
    found = true = single = 0.0
    for _ in range(60):
        for bucket in buckets:
            n = sum(bucket.numels)
            common = torch.randn(n, generator=draw)
            each = [
                math.sqrt(correlation) * common
                + math.sqrt(1.0 - correlation) * torch.randn(n, generator=draw)
                for _ in meters
            ]
            for meter, gradient in zip(meters, each, strict=True):
                meter.add(None, bucket.number, gradient)
            true += float(torch.stack(each).mean(0).square().sum())
            single += float(torch.stack(each).square().sum()) / RANKS
        total = [sum(column) for column in zip(*(meter.pop() for meter in meters), strict=True)]
        energies = mean_energies(total, RANKS)
        assert energies is not None
        found += energies[0] / energies[1]
    assert found / 60 == pytest.approx(true / single, rel=0.12)
    assert meters[0].pop() == [0.0] * SIZE, "each step begins at zero"


def test_a_rank_that_cannot_measure_leaves_the_norm_unknown() -> None:
    meter = RawMeanMeter(wanted=True)
    meter.add(None, 0, torch.tensor([1.0, math.nan, 2.0]))
    assert mean_energies(meter.pop(), 1) is None
    assert mean_energies(NONE, RANKS) is None
