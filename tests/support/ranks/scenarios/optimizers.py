"""Optimizers that a trainer uses besides torch's own, and those that the agent was not given."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent
from tests.support.ranks.scenarios.model import batch, fingerprint, net


class DistributedMuon(torch.optim.Optimizer):
    """Muon whose step shares the matrices among ranks and broadcasts them, as that of modded-nanogpt does."""

    def __init__(self, params: Any, lr: float = 0.005, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        number = 0
        for group in self.param_groups:
            for one in group["params"]:
                owner, number = number % dist.get_world_size(), number + 1
                if owner == dist.get_rank() and one.grad is not None:
                    mean = self.state[one].setdefault("mean", torch.zeros_like(one))
                    mean.lerp_(one.grad, 1 - group["momentum"])
                    one.sub_(_orthogonal(mean), alpha=group["lr"])
                dist.broadcast(one.data, owner)


def _orthogonal(x: Tensor) -> Tensor:
    """Newton-Schulz with the coefficients of Muon. Only matrices have one."""
    if x.ndim != 2:
        raise ValueError("Muon is for matrices")
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x


class RoundsAtRandom(torch.optim.Optimizer):
    """SGD whose step rounds with the training's random numbers, and whose constructor draws one as well."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})
        torch.rand(())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    noise = torch.rand_like(one) - 0.5
                    one.sub_(group["lr"] * (one.grad + 0.01 * noise))


KINDS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "muon": DistributedMuon,
    "rounds": RoundsAtRandom,
}


def own_optimizers(rank: int, world: int, folder: str, *, kind: str) -> dict[str, Any]:
    """Training with a user's optimizer: plainly, under ``policy="dense"``, and compressed."""
    found: dict[str, Any] = {}
    for name, policy in (("plain", None), ("dense", "dense"), ("compressed", "static:cf=4")):
        model = net(layers=4)
        for one in model.parameters():
            one.requires_grad_(one.ndim == 2)
        module = DistributedDataParallel(model, bucket_cap_mb=0.02)
        optimizer = KINDS[kind]([one for one in model.parameters() if one.ndim == 2])
        with Agent(
            module,
            optimizer,
            enabled=policy is not None,
            policy=policy or "dense",
            data_dir=f"{folder}/{name}",
            controller=None,
            window=20,
        ):
            for step in range(40):
                _backward(module, rank, step)
                optimizer.step()
                optimizer.zero_grad()
        found[name] = {"parameters": fingerprint(module), "loss": heldout(module.module)}
    return found


def _backward(module: nn.Module, rank: int, step: int, factor: float = 1.0) -> None:
    x, y = batch(rank, step)
    (nn.functional.cross_entropy(module(x), y) * factor).backward()


@torch.no_grad()
def heldout(model: nn.Module) -> float:
    """Return the mean loss on batches that no rank trains on; the same on all ranks."""
    losses = [
        float(nn.functional.cross_entropy(model(x), y)) for x, y in (batch(50, 10_000 + at) for at in range(40))
    ]
    return math.fsum(losses) / len(losses)
