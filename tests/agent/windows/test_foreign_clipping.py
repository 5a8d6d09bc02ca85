"""Gradients that torch clips under a lossy codec are noticed, once; in one process, a world of one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent

WARNING = "Use agent.clip_grad_norm_(max_norm)"


def by_torch(agent: Agent, module: nn.Module) -> None:
    nn.utils.clip_grad_norm_(module.parameters(), 0.05)


def by_hand(agent: Agent, module: nn.Module) -> None:
    gradients = [one.grad for one in module.parameters() if one.grad is not None]
    norm = torch.stack([one.norm() for one in gradients]).norm()
    for one in gradients:
        one *= min(1.0, 0.02 / float(norm))


def by_agent(agent: Agent, module: nn.Module) -> None:
    agent.clip_grad_norm_(0.05)


def by_nobody(agent: Agent, module: nn.Module) -> None:
    pass


def divided(agent: Agent, module: nn.Module) -> None:
    for one in module.parameters():
        if one.grad is not None:
            one.grad /= 4


def penalized(agent: Agent, module: nn.Module) -> None:
    """Add the gradient of a penalty, against which the gradient of the loss works."""
    for one in module.parameters():
        if one.grad is not None:
            one.grad -= 0.2 * torch.rand(()) * one.grad.norm() * one.grad.sign() + 0.01 * one.detach()


def by_value(agent: Agent, module: nn.Module) -> None:
    nn.utils.clip_grad_value_(module.parameters(), 0.002)


@pytest.mark.parametrize(
    ("change", "policy", "warns"),
    [
        (by_torch, "static:cf=8", True),
        (by_hand, "static:cf=8", True),
        (by_torch, "dense", False),
        (by_agent, "static:cf=8", False),
        (by_nobody, "static:cf=8", False),
        (divided, "static:cf=8", False),
        (penalized, "static:cf=8", False),
        (by_value, "static:cf=8", True),
    ],
)
def test_clipping_by_others_is_noticed(
    world_of_one: None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Agent, nn.Module], Any],
    policy: str,
    warns: bool,
) -> None:
    torch.manual_seed(0)
    module = DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8)))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    with Agent(module, optimizer, controller=None, data_dir=tmp_path, policy=policy) as agent:
        for _ in range(30):
            module(torch.randn(16, 32)).square().mean().backward()
            change(agent, module)
            optimizer.step()
            optimizer.zero_grad()
    assert caplog.text.count(WARNING) == warns, caplog.text
