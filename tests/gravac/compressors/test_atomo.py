"""ATOMO: on the lecture's matrix, and the best way to spend a budget."""

import pytest
import torch
from torch import Tensor

from gravac.compressors import build
from gravac.compressors.lowrank.atomo import water_filling
from gravac.compressors.lowrank.svd import LowRank
from tests.support.maths.checks import LECTURE, draws

POSITIVE = LECTURE.abs()


def test_atomo() -> None:
    values = torch.tensor([133.768215, 58.643540], dtype=torch.float64)
    for budget, chances, variance in ((1.0, [0.695219, 0.304781], 15689.283), (1.5, [1.0, 0.5], 3439.065)):
        p = water_filling(values, budget)
        assert p.tolist() == pytest.approx(chances, abs=1e-6)
        assert float((values.square() * (1 / p - 1)).sum()) == pytest.approx(variance, rel=1e-5)
    p = water_filling(POSITIVE.double(), 3.0)
    assert p.tolist() == pytest.approx([0.048, 0.032, 1, 0.112, 0.144, 0.896, 0.4, 0.368])
    assert float(p.sum()) == pytest.approx(3.0)
    assert float((POSITIVE.double().square() * (1 / p - 1)).sum()) == pytest.approx(3379.5)
    codec = build("atomo")
    assert isinstance(codec, LowRank)
    decoded = draws(codec.fitted([(2, 4)]), POSITIVE, 1.3, 4000)
    assert float((decoded - POSITIVE).square().sum(1).mean()) == pytest.approx(15689.283, rel=0.05)
    # Drawing again when nothing came out would make everything larger by this.
    empty = (1 - 0.695219) * (1 - 0.304781)
    assert 1 / (1 - empty) == pytest.approx(1.2689, abs=1e-4)
    assert float((decoded == 0).all(1).double().mean()) == pytest.approx(empty, rel=0.1)


@pytest.mark.parametrize("budget", [0.5, 1.0, 2.0, 3.7, 6.0, 9.0])
def test_water_filling_is_the_best_spending(budget: float) -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.rand(20, 7, generator=generator, dtype=torch.float64) ** 3
    values[0, 3:] = 0
    p = water_filling(values, budget)
    positive = (values > 0).sum(1)
    assert torch.allclose(p.sum(1), positive.clamp(max=budget).double().minimum(torch.tensor(budget)))

    def cost(chances: Tensor) -> Tensor:
        return torch.where(values > 0, values.square() / chances, 0.0).sum(1)

    for _ in range(200):  # no other way of spending the same is cheaper
        other = (torch.rand(p.shape, generator=generator, dtype=torch.float64) * p).clamp_min(1e-9)
        other = (other * (p.sum(1, keepdim=True) / other.sum(1, keepdim=True))).clamp(max=1.0)
        assert bool((cost(other) >= cost(p) * (1 - 1e-9)).all())
