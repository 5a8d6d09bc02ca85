"""Gradient diversity in studies: every identity by enumeration, so that a wrong constant cannot hide in noise."""

import itertools
import math

import pytest
import torch

from gravac.signals.diversity import diversity
from gravac_lab.estimators.diversity import (
    batch_bound,
    batch_second_moment,
    compressed_diversity,
    compression_noise_ratio,
)
from tests.gravac.signals.test_diversity import gradients, scalars, sq


def test_the_bound_of_equal_orthogonal_and_opposed_gradients() -> None:
    assert batch_bound(*scalars(torch.ones(4, 3))) == pytest.approx(1.0)
    assert batch_bound(*scalars(torch.eye(4))) == pytest.approx(4.0)
    assert batch_bound(*scalars(torch.tensor([[1.0], [-1.0]]))) is None


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_second_moment_of_every_batch_there_is(batch: int) -> None:
    g = gradients(5, 4)
    sample_sq, full_sq = scalars(g)
    bound = batch_bound(sample_sq, full_sq)
    assert bound is not None
    batches = itertools.product(range(5), repeat=batch)
    mean = math.fsum(sq(g[list(chosen)].mean(0)) for chosen in batches) / 5**batch
    assert batch_second_moment(sample_sq, bound, batch) == pytest.approx(mean, rel=1e-12)


def test_the_bound_is_one_plus_the_noise_scale() -> None:
    g = gradients(6, 3)
    variance = float((g - g.mean(0)).square().sum(1).mean())
    assert batch_bound(*scalars(g)) == pytest.approx(1 + variance / sq(g.mean(0)), rel=1e-12)


def test_unbiased_compression_raises_diversity_by_the_formula() -> None:
    """Random-1 of 3 coordinates times 3 (omega = 2), independent on 3 ranks: all 27 outcomes."""
    g, omega = gradients(3, 3, seed=2), 2.0
    masks = torch.eye(3, dtype=torch.float64) * 3
    numerator = denominator = 0.0
    for chosen in itertools.product(range(3), repeat=3):
        coded = g * masks[list(chosen)]
        numerator += sq(coded)
        denominator += sq(coded.sum(0))
    plain = diversity(*scalars(g), 3)
    assert plain is not None
    assert compressed_diversity(plain, omega) == pytest.approx(numerator / denominator, rel=1e-12)
    assert compressed_diversity(plain, 0.0) == plain
    # The added variance of the mean, by the same enumeration.
    added = denominator / 27 / 9 - sq(g.mean(0))
    local_sq = float(g.square().sum(1).mean())
    assert compression_noise_ratio(local_sq, 3, omega, 0.25, 2) == pytest.approx(
        added / (0.25 / 2), rel=1e-12
    )
    assert compression_noise_ratio(1.0, 3, 0.0, 0.0, 2) == 0.0
    assert compression_noise_ratio(1.0, 3, 1.0, 0.0, 2) == math.inf
