"""Optimizers that a trainer uses besides torch's own, and those that the agent was not given."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent
from tests.ranks.scenarios.model import batch, fingerprint, net


class DistributedMuon(torch.optim.Optimizer):
    """Muon whose step shares the matrices among ranks and broadcasts them, as that of modded-nanogpt does."""

    def __init__(self, params: Any, lr: float = 0.005, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        number = 0
        for group in self.param_groups:
            for param in group["params"]:
                owner, number = number % dist.get_world_size(), number + 1
                if owner == dist.get_rank() and param.grad is not None:
                    mean = self.state[param].setdefault("mean", torch.zeros_like(param))
                    mean.lerp_(param.grad, 1 - group["momentum"])
                    param.sub_(_orthogonal(mean), alpha=group["lr"])
                dist.broadcast(param.data, owner)


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
            for param in group["params"]:
                if param.grad is not None:
                    noise = torch.rand_like(param) - 0.5
                    param.sub_(group["lr"] * (param.grad + 0.01 * noise))


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
        optimizer = KINDS[kind]([param for param in model.parameters() if param.ndim == 2])
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


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization around a base optimizer, in the form that most copies have.

    ``subtract``: forms that climb down by what they climbed; the others keep a copy of the parameters.
    """

    def __init__(self, params: Any, subtract: bool = False, rho: float = 0.05) -> None:
        super().__init__(params, {"rho": rho})
        self.base_optimizer = torch.optim.SGD(self.param_groups, lr=0.05, momentum=0.9)
        self.param_groups = self.base_optimizer.param_groups
        self.subtract = subtract

    @torch.no_grad()
    def first_step(self) -> None:
        every = [param for group in self.param_groups for param in group["params"] if param.grad is not None]
        scale = self.param_groups[0]["rho"] / (torch.stack([one.grad.norm() for one in every]).norm() + 1e-12)
        for one in every:
            climb = one.grad * scale
            self.state[one]["back"] = climb if self.subtract else one.data.clone()
            one.add_(climb)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for one, state in self.state.items():
            if self.subtract:
                one.sub_(state["back"])
            else:
                one.data = state["back"]
        self.base_optimizer.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        closure = torch.enable_grad()(closure)
        self.first_step()
        closure()
        self.second_step()


class Handmade(SAM):
    """Climbs by ``data``, which no version of a tensor shows."""

    @torch.no_grad()
    def first_step(self) -> None:
        for param in self.param_groups[0]["params"]:
            param.data.add_(param.grad, alpha=0.02)
            self.state[param]["climb"] = param.grad.clone()
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for param in self.param_groups[0]["params"]:
            param.data.sub_(self.state[param]["climb"], alpha=0.02)
        self.base_optimizer.step()
        self.zero_grad()


def stepped_by_others(
    rank: int, world: int, folder: str, *, how: str, cf: float, bad_step: int = -1
) -> dict[str, Any]:
    """Optimizers that the agent was not given, or whose ``step`` is never called.

    Plainly; with an agent; and with one that is told after each backward that its gradients are used, by a
    ``state_dict``, so that nothing depends on what it sees of the optimizer.

    Args:
        how: What steps.
        cf: Compression factor.
        bad_step: The step in which rank 1's loss is NaN.
    """
    found: dict[str, Any] = {}
    for name in ("plain", "agent", "notified"):
        module = DistributedDataParallel(net(layers=4), bucket_cap_mb=0.02)
        parameters = list(module.parameters())
        given: torch.optim.Optimizer
        if how.startswith("swapped"):
            given = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
        else:
            given = (Handmade if how == "handmade" else SAM)(parameters, how == "sam, subtracting")
        stepper: Any = given
        options: dict[str, Any] = {"data_dir": f"{folder}/{name}", "controller": None, "window": 20}
        with Agent(
            module,
            given.base_optimizer if how == "sam, base given" else given,  # type: ignore[attr-defined]
            enabled=name != "plain",
            policy=f"static:cf={cf}",
            **options,
        ) as agent:

            def backward(step: int, bad: bool = False, name: str = name, agent: Agent = agent) -> None:
                _backward(module, rank, step, math.nan if bad and rank == 1 else 1.0)  # noqa: B023
                if name == "notified":
                    agent.state_dict()

            for step in range(40):
                if how == "swapped" and step == 13:
                    stepper = torch.optim.AdamW(parameters, lr=0.003)
                backward(step, step == bad_step)
                if how == "swapped":
                    stepper.step()
                    stepper.zero_grad()
                elif how == "sam, closure":
                    stepper.step(lambda step=step: backward(step))
                else:
                    stepper.first_step()
                    backward(step, step == bad_step)
                    stepper.second_step()
            if name != "plain":
                agent.state_dict()  # ends the last step
            notes = [] if agent._parts is None else list(agent._parts.channels._noted)
            residual = {} if agent._parts is None else agent._parts.memory.state_dict()
        found[name] = {
            "parameters": fingerprint(module),
            "residual": sum(float(one.double().sum()) for one in residual.values()),
            "loss": heldout(module.module),
            "notes": [
                note
                for note in notes
                if "ther optimizer" in note or "Gradients were exchanged, and before" in note
            ],
        }
    return found


def _backward(module: nn.Module, rank: int, step: int, factor: float = 1.0) -> None:
    x, y = batch(rank, step)
    (nn.functional.cross_entropy(module(x), y) * factor).backward()


@torch.no_grad()
def heldout(model: nn.Module) -> float:
    """Return the mean loss on batches that no rank trains on; the same on all ranks."""
    losses = [
        float(nn.functional.cross_entropy(model(x), y))
        for x, y in (batch(50, 10_000 + at) for at in range(40))
    ]
    return math.fsum(losses) / len(losses)
