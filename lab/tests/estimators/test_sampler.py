"""The sampler: every rank and pass has its own draws, and each sample its weight."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gravac_lab.estimators import Importance, Uniform
from gravac_lab.estimators.sampler import EstimatorSampler, WeightedDataset


def test_the_sampler_gives_every_rank_and_pass_its_own_draws() -> None:
    estimator = Importance(torch.arange(1.0, 51.0))
    sampler = EstimatorSampler(estimator, seed=3)
    first, second = list(sampler), list(sampler)
    assert len(first) == len(sampler) == 50
    assert first != second
    assert first != list(EstimatorSampler(estimator, seed=3, rank=1))
    assert first != list(EstimatorSampler(estimator, seed=4))
    again = EstimatorSampler(estimator, seed=3)
    again.set_epoch(1)
    assert list(again) == second
    assert len(list(EstimatorSampler(estimator, draws=10_000))) == 10_000
    with pytest.raises(ValueError, match="draws=0"):
        EstimatorSampler(estimator, draws=0)


def test_a_loader_brings_each_sample_with_its_weight() -> None:
    scores = torch.rand(30, generator=torch.Generator().manual_seed(0)) + 0.1
    data, estimator = TensorDataset(torch.arange(30), torch.arange(30) * 10), Importance(scores)
    loader = DataLoader(
        WeightedDataset(data, estimator), batch_size=8, sampler=EstimatorSampler(estimator, draws=100)
    )
    seen = 0
    for (x, y), weight in loader:
        assert weight.dtype == torch.float32
        assert torch.equal(y, x * 10)
        torch.testing.assert_close(weight, estimator.weight[x].float())
        seen += len(x)
    assert seen == 100
    with pytest.raises(ValueError, match="dataset has 30 samples, the estimator was made for 29"):
        WeightedDataset(data, Uniform(29))
