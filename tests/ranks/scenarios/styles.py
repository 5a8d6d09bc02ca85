"""Ways to train: accumulation, unused parameters, scalers, parameter groups."""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent
from tests.ranks.scenarios.model import batch, fingerprint, net, train, wrapped
from tests.ranks.scenarios.undo import Undone


class Branchy(nn.Module):
    """A net whose second branch is used on every third step only, and not at all on the last rank."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.side, self.head = net(), nn.Linear(64, 64), nn.Linear(10, 10)
        self.use_side = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.use_side:
            x = self.side(x)
        return self.head(self.body(x))


def styled_steps(
    module: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    style: str,
    rank: int,
    world: int,
    agent: Agent | None = None,
) -> float | None:
    """30 steps in one of the styles, clipped by the agent if it is given; returns the loss scale, if there is one."""
    clip = (
        partial(nn.utils.clip_grad_norm_, list(module.parameters()))
        if agent is None
        else agent.clip_grad_norm_
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7) if style == "amp" else None
    for step in range(30):
        x, y = batch(rank, step)
        if style == "unused_parameters":
            module.module.use_side = step % 3 == 0 and rank < world - 1  # type: ignore[assignment]
        if style == "accumulation":
            with module.no_sync():
                nn.functional.cross_entropy(module(x), y).backward()
        with torch.autocast("cpu", torch.bfloat16, enabled=style == "amp"):
            loss = nn.functional.cross_entropy(module(x), y)
        if scaler is None:
            loss.backward()
            clip(0.3)
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip(0.3)
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    return scaler.get_scale() if scaler else None


def training_styles(rank: int, world: int, folder: str, style: str, policy: str) -> dict[str, Any]:
    """The ways people train: each plainly and with the agent; returns both fingerprints."""

    def make() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
        torch.manual_seed(0)
        options: dict[str, Any] = {"bucket_cap_mb": 0.02}
        if style in ("gradient_as_bucket_view", "static_graph"):
            options[style] = True
        if style == "unused_parameters":
            options["find_unused_parameters"] = True
        module = DistributedDataParallel(Branchy() if style == "unused_parameters" else net(), **options)
        return module, torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)

    plain = make()
    styled_steps(*plain, style, rank, world)
    watched = make()
    with Agent(*watched, data_dir=folder, controller=None, policy=policy, window=5) as agent:
        scale = styled_steps(*watched, style, rank, world, agent)
        steps = agent.state.step if agent.state else 0
    return {"plain": fingerprint(plain[0]), "agent": fingerprint(watched[0]), "steps": steps, "scale": scale}


def overflow_under_amp(rank: int, world: int, folder: str) -> dict[str, Any]:
    """A GradScaler sees an overflow on one rank: every rank skips the step, halves the scale, keeps its residual."""
    module = wrapped(buckets=8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=1000)
    bad = {"now": False}
    next(module.module.parameters()).register_hook(lambda grad: grad * float("inf") if bad["now"] else grad)
    scales, kept = [], True
    with Agent(module, optimizer, data_dir=folder, controller=None, policy="static:cf=10", window=5) as agent:
        assert agent._parts is not None
        for step in range(12):
            bad["now"] = step == 6 and rank == 1
            before = fingerprint(module), Undone(agent._parts.memory)
            x, y = batch(rank, step)
            scaler.scale(nn.functional.cross_entropy(module(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
            if step == 6:
                agent.state_dict()  # ends the step
                kept = before[0] == fingerprint(module) and before[1].within_rounding()
    return {"scales": scales, "kept": kept, "parameters": fingerprint(module)}


def two_groups(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Data parallelism inside groups of two: an agent in each, with its own settings."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = rank // 2
    module = DistributedDataParallel(net(seed=mine), process_group=groups[mine], bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    with Agent(
        module, optimizer, data_dir=folder, controller=None, policy=f"static:cf={10 + 10 * mine}", window=5
    ) as agent:
        train(module, optimizer, rank, range(17))
        job = agent.state.job if agent.state else ""
    dist.barrier()  # rank 0 keeps the store that the other group needs while it starts
    return {"parameters": fingerprint(module), "job": job}
