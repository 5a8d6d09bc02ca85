"""The residual follows the learning rate and the loss scale (e ← e · η/η' · S'/S)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac import optim
from gravac.compressors import Key, build
from gravac.kernels import STEP
from gravac.memories import Bucket, ResidualMemory
from gravac.protocol import WindowReport
from gravac.traces import read_trace
from gravac_agent import Agent
from gravac_agent.state.rates import LearningRates


class FakeScaler:
    scale = 8.0

    def get_scale(self) -> float:
        return self.scale


def optimizer(*rates: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates])


def watched(*rates: float, scaler: FakeScaler | None = None) -> tuple[torch.optim.Optimizer, LearningRates]:
    """One parameter a group, named g0, g1, …"""
    steps = optimizer(*rates)
    names = {id(group["params"][0]): f"g{number}" for number, group in enumerate(steps.param_groups)}
    return steps, LearningRates([steps], scaler, names)


def memory_with_residual() -> ResidualMemory:
    memory = ResidualMemory()
    memory.load_state_dict({"g0": torch.ones(1), "g1": torch.ones(1)})
    return memory


def residuals(memory: ResidualMemory) -> list[float]:
    state = memory.state_dict()
    return [float(state["g0"]), float(state["g1"])]


def test_the_residual_follows_rate_and_scale() -> None:
    scaler, memory = FakeScaler(), memory_with_residual()
    steps, rates = watched(0.1, 0.2, scaler=scaler)
    rates.follow(memory)
    assert residuals(memory) == [1.0, 1.0]
    steps.param_groups[0]["lr"], steps.param_groups[1]["lr"] = 0.05, 0.1
    rates.follow(memory)
    assert residuals(memory) == [2.0, 2.0]
    scaler.scale = 2.0
    rates.follow(memory)
    rates.follow(memory)
    assert residuals(memory) == [0.5, 0.5]
    saved = rates.state()
    steps.param_groups[0]["lr"], steps.param_groups[1]["lr"] = 0.5, 1.0
    again = LearningRates([steps], scaler, {})
    again.restore(saved)
    again.follow(memory)
    assert residuals(memory) == pytest.approx([0.05, 0.05])


def test_groups_may_have_different_rates() -> None:
    memory = memory_with_residual()
    steps, rates = watched(0.1, 0.2)
    steps.param_groups[0]["lr"] = 0.05
    rates.follow(memory)
    assert residuals(memory) == [2.0, 1.0]


def test_a_rate_of_zero_is_ignored() -> None:
    memory = memory_with_residual()
    steps, rates = watched(0.1, 0.2)
    for rate in (0.0, 0.0, 0.05):
        for group in steps.param_groups:
            group["lr"] = rate
        rates.follow(memory)
    assert residuals(memory) == pytest.approx([2.0, 4.0])


def test_an_optimizer_by_age_hears_of_it_once() -> None:
    """Whatever the memories; of another optimizer, and of a rate that stays, nothing is said."""
    params = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    aged = optim.AdamW([{"params": params[:1], "lr": 0.1}, {"params": params[1:2], "lr": 0.2}])
    other = torch.optim.SGD(params[2:], lr=0.3)
    rates = LearningRates([other, aged], None, {id(params[0]): "g0", id(params[1]): "g1"})
    for param in params:
        param.grad = torch.ones(2)
    for _ in range(4):
        aged.arrived({param: torch.tensor([0]) for param in params[:2]})
        aged.step()
    aged.param_groups[1]["lr"], other.param_groups[0]["lr"] = 0.1, 0.6
    memories = memory_with_residual(), memory_with_residual()
    rates.follow(*memories)
    assert [residuals(one) for one in memories] == [[1.0, 2.0]] * 2
    ages = [one["age"].tolist() for one in aged.state_dict()["state"].values()]
    assert ages == [[STEP, 5 * STEP], [STEP, (1 + 4 * 4) * STEP]]


@pytest.mark.parametrize("rescale", [True, False])
def test_rate_outside_equals_rate_inside_only_with_rescaling(rescale: bool, tmp_path: Path) -> None:
    """Seed-maths 2.4: p = g + e outside, with e rescaled, is p = ηg + e inside."""
    codec, generator = build("topk"), torch.Generator().manual_seed(3)
    bucket, key = Bucket(0, ("w",), (50,)), Key(0, 0, 0, 0)
    outside, memory = torch.zeros(50), ResidualMemory()
    inside, residual = torch.zeros(50, dtype=torch.float64), torch.zeros(50, dtype=torch.float64)
    part, steps = memory.open(bucket), optimizer(1.0)
    rates = LearningRates([steps], None, {})
    for step in range(30):
        rate = steps.param_groups[0]["lr"] = 2.0 ** -(step // 5)
        gradient = torch.randint(-9, 9, (50,), generator=generator).float()
        if rescale:
            rates.follow(memory)
        payload = codec.compress(part.compensate(gradient), 10.0, key, torch.float32)
        part.update(codec, payload)
        memory.commit()
        codec.decompress(payload, outside, -rate)
        p = rate * gradient.double() + residual
        support = codec.compress(p.float(), 10.0, key, torch.float32).support
        assert support is not None
        sent = torch.zeros_like(p)
        sent[support] = p[support]
        residual, inside = p - sent, inside - sent
    assert torch.equal(outside.double(), inside) == rescale


def test_a_window_says_the_rate_that_its_residual_follows(world_of_one: None, tmp_path: Path) -> None:
    """The mean over its steps by the residual's energy, of the group with the largest; a rate of 0 counts as the last
    one above 0."""
    torch.manual_seed(0)
    module = DistributedDataParallel(nn.Linear(40, 20))
    groups = [{"params": [module.module.weight], "lr": 0.1}, {"params": [module.module.bias], "lr": 0.01}]
    steps = torch.optim.SGD(groups)
    options: dict[str, Any] = {"policy": "static:cf=10", "window": 5}
    with Agent(module, steps, controller=None, data_dir=tmp_path, job="job", **options):
        for number in range(20):
            steps.param_groups[0]["lr"] = (0.1, 0.05, 0.001, 0.0)[number // 5]
            module(torch.randn(8, 40)).square().sum().backward()
            steps.step()
            steps.zero_grad()
    trace = read_trace(tmp_path / "job" / "journal.jsonl")
    found = [line.record.residual_rate for line in trace if isinstance(line.record, WindowReport)]
    first, second, third, fourth = found
    assert first == pytest.approx(0.1)
    assert second == pytest.approx(0.05)
    assert third == pytest.approx(0.01), "that of the other group"
    assert fourth == pytest.approx(0.01)
