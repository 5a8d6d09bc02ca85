"""Optimizers that run backward inside their step, by a closure, as Lightning's trainer does."""

from functools import partial
from typing import Any

import torch
from torch import nn

from gravac_agent import Agent
from gravac_agent.setup.usage import unwrapped
from tests.ranks.scenarios.model import batch, fingerprint, wrapped


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another one that was never initialized as one, like Accelerate's."""

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
        self.optimizer, self.scaler = optimizer, scaler

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


def closures(rank: int, world: int, folder: str, *, ends_backward: bool, policy: str) -> dict[str, Any]:
    """Twelve steps by a closure, of which rank 1 has a NaN in one; and the same without a closure."""
    found: dict[str, Any] = {}
    for kind in ("closure", "plain"):
        found[kind] = _trained(rank, folder, kind, ends_backward, policy)
    return found


def _trained(rank: int, folder: str, kind: str, ends_backward: bool, policy: str) -> dict[str, Any]:
    module = wrapped(buckets=4)
    wrapper = Wrapper(torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9), scaler := object())
    assert unwrapped(wrapper, None) == (wrapper.optimizer, scaler)
    wrapper.scaler = None
    with Agent(module, wrapper, data_dir=folder, controller=None, policy=policy, window=4, job=kind) as agent:

        def closure(step: int) -> None:
            x, y = batch(rank, step)
            wrapper.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(x), y)
            (loss * float("nan") if step == 5 and rank == 1 else loss).backward()
            agent.clip_grad_norm_(0.3)
            if ends_backward:
                agent.finish_backward()

        for step in range(12):
            if kind == "closure":
                wrapper.step(partial(closure, step))
            else:
                closure(step)
                wrapper.step()
        assert agent._parts is not None
        assert agent.state is not None
        return {
            "parameters": fingerprint(module),
            "finite": all(bool(param.isfinite().all()) for param in module.parameters()),
            "progress": agent._parts.loop.progress.on,
            "nonfinite": agent.state.nonfinite_steps,
        }
