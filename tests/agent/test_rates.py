"""What is owed follows the learning rate and the loss scale (e ← e · η/η' · S'/S)."""

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from gravac.compressors import Key, build
from gravac.memories import Bucket, ResidualMemory
from gravac_agent.rates import Rates


class FakeScaler:
    scale = 8.0

    def get_scale(self) -> float:
        return self.scale


def optimizer(*rates: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates])


def test_factor_follows_rate_and_scale() -> None:
    steps, scaler = optimizer(0.1, 0.2), FakeScaler()
    rates = Rates(steps, scaler)
    assert rates.factor() == 1.0
    steps.param_groups[0]["lr"], steps.param_groups[1]["lr"] = 0.05, 0.1
    assert rates.factor() == 2.0
    scaler.scale = 2.0
    assert rates.factor() == 0.25
    assert rates.factor() == 1.0
    saved = rates.state()
    steps.param_groups[0]["lr"], steps.param_groups[1]["lr"] = 0.5, 1.0
    again = Rates(steps, scaler)
    again.restore(saved)
    assert again.factor() == pytest.approx(0.1)


def test_no_factor_is_right_for_groups_that_part_or_a_rate_of_zero(caplog: pytest.LogCaptureFixture) -> None:
    steps = optimizer(0.1, 0.2)
    rates = Rates(steps, None)
    steps.param_groups[0]["lr"] = 0.05
    with caplog.at_level(logging.WARNING):
        assert rates.factor() == 1.0
    assert "not rescaled" in caplog.text
    for group in steps.param_groups:
        group["lr"] = 0.0
    assert rates.factor() == 1.0
    for group in steps.param_groups:
        group["lr"] = 0.1
    assert rates.factor() == 1.0


@pytest.mark.parametrize("rescale", [True, False])
def test_rate_outside_equals_rate_inside_only_with_rescaling(rescale: bool, tmp_path: Path) -> None:
    """Seed-maths 2.4: p = g + e outside, with e rescaled, is p = ηg + e inside."""
    codec, generator = build("topk"), torch.Generator().manual_seed(3)
    bucket, key = Bucket(0, ("w",), (50,)), Key(0, 0, 0, 0)
    outside, memory = torch.zeros(50), ResidualMemory()
    inside, owed = torch.zeros(50, dtype=torch.float64), torch.zeros(50, dtype=torch.float64)
    steps = optimizer(1.0)
    rates = Rates(steps, None)
    for step in range(30):
        rate = steps.param_groups[0]["lr"] = 2.0 ** -(step // 5)
        gradient = torch.randint(-9, 9, (50,), generator=generator).float()
        factor = rates.factor()
        if rescale:
            memory.rescale(factor)
        payload = codec.compress(memory.compensate(bucket, gradient), 10.0, key, torch.float32)
        memory.update(bucket, codec, payload)
        memory.commit()
        codec.decompress(payload, outside, -rate)
        p = rate * gradient.double() + owed
        support = codec.compress(p.float(), 10.0, key, torch.float32).support
        assert support is not None
        sent = torch.zeros_like(p)
        sent[support] = p[support]
        owed, inside = p - sent, inside - sent
    assert torch.equal(outside.double(), inside) == rescale
