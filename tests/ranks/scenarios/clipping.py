"""Clipping through the agent, beside the same job simulated in one process."""

import io
import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gravac.memories import Bucket
from gravac_agent import Agent
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.windows.clipping import Clipper
from tests.ranks.scenarios.model import batch, fingerprint, net, wrapped

RATE = 0.1


def clipped(
    rank: int,
    world: int,
    folder: str,
    compressor: str,
    cf: float,
    max_norm: float = 0.2,
    steps: int = 24,
    bad_step: int = -1,
    resume: int = -1,
    memory: str = "residual",
) -> dict[str, Any]:
    """Steps with a spike in the middle, live and simulated; returns how far the two are apart.

    Args:
        bad_step: The step in which rank 1's gradient is infinite.
        resume: The step before which all is saved, and loaded by a new agent.
    """
    module = wrapped(buckets=4)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    plans: list[StepPlan] = []
    layouts: list[list[Bucket]] = []
    norms: list[float] = []
    options: dict[str, Any] = {
        "data_dir": folder,
        "controller": None,
        "policy": f"static:cf={cf}",
        "window": 7,
    }
    options |= {"compressor": compressor, "memory": memory}
    agent = Agent(module, optimizer, **options)
    agent.start()
    for step in range(steps):
        if step == resume:
            saved = io.BytesIO()
            torch.save([one.state_dict() for one in (module, optimizer, agent)], saved)
            agent.close()
            module = wrapped(buckets=4)
            optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
            agent = Agent(module, optimizer, **options)
            agent.start()
            saved.seek(0)
            for one, each in zip(
                (module, optimizer, agent), torch.load(saved, weights_only=True), strict=True
            ):
                one.load_state_dict(each)
        assert agent._session is not None
        plans.append(agent._session.parts.loop.plan)
        x, y = batch(rank, step)
        (cross_entropy(module(x), y) * _size(rank, step, steps, bad_step)).backward()
        norm = float(agent.clip_grad_norm_(max_norm))
        norms.append(norm if math.isfinite(norm) else 1.0)
        # A resumed agent exchanges its first step in the buckets that were saved.
        layouts.append(layouts[-1] if step == resume else list(agent._session.layout))
        optimizer.step()
        optimizer.zero_grad()
    assert agent._session is not None
    residual = agent._session.parts.memory.state_dict()
    state, held = agent._session.parts.loop.clipper.state(), agent._session.parts.memory.nbytes()
    agent.close()
    theirs, their_norms, their_residual, left_alone, cut = _simulated(
        rank, world, compressor, memory, plans, layouts, max_norm, steps, bad_step
    )
    mine = torch.cat([param.detach().flatten() for param in module.parameters()])
    moved = mine - torch.cat([param.detach().flatten() for param in net().parameters()])
    worst_residual = max(
        float((residual[name] - their_residual[name]).abs().max() / their_residual[name].abs().max())
        for name in their_residual
    )
    return {
        "parameters": fingerprint(module),
        "norms": norms,
        "norm_error": max(abs(a / b - 1.0) for a, b in zip(norms, their_norms, strict=True)),
        "error": float((mine - theirs).norm() / moved.norm()),
        "residual_error": worst_residual,
        "buckets": len(layouts[-1]),
        "state": state,
        "left_alone": left_alone,
        "cut": cut,
        "held": held / mine.numel(),
    }


def _size(rank: int, step: int, steps: int, bad_step: int) -> float:
    if step == bad_step and rank == 1:
        return math.inf
    return 50.0 if step == steps // 2 else 1.0


def _simulated(
    rank: int,
    world: int,
    compressor: str,
    memory: str,
    plans: list[StepPlan],
    layouts: list[list[Bucket]],
    max_norm: float,
    steps: int,
    bad_step: int,
) -> tuple[torch.Tensor, list[float], dict[str, torch.Tensor], int, int]:
    """The same job in one process: parameters, norms, this rank's residual, steps that were clipped as by torch, and
    steps in which gradients that wait were cut."""
    model = net()
    parameters = dict(model.named_parameters())
    from gravac_lab.simulate.ranks import SimulatedRanks  # only here: see tests/support/lab.py

    ranks = SimulatedRanks(world, compressor, memory, elements=sum(one.numel() for one in model.parameters()))
    clipper, norms, left_alone, cut = Clipper(world), [], 0, 0
    for step, (plan, layout) in enumerate(zip(plans, layouts, strict=True)):
        gradients = []
        for one in range(world):
            model.zero_grad()
            x, y = batch(one, step)
            (cross_entropy(model(x), y) * _size(one, step, steps, bad_step)).backward()
            gradients.append([_flat(parameters, bucket) for bucket in layout])
        for channels in ranks.channels:
            channels.raw_mean.wanted = step > 0  # the agent learns of it after the first backward
        done = ranks.exchange(layout, gradients, plan, step)
        if done.sums.nonfinite:
            clipper.end_step(done.sums, done.raw_mean, False)
            norms.append(1.0)
            continue
        for bucket, flat in zip(layout, gradients[0], strict=True):
            for name, piece in zip(bucket.names, flat.split(list(bucket.numels)), strict=True):
                parameters[name].grad = piece.view_as(parameters[name])
        exact = torch.cat([param.grad.flatten() for param in parameters.values() if param.grad is not None])
        clipper.end_step(done.sums, done.raw_mean, done.mean_sq is not None)
        out = clipper.clip(model.parameters(), max_norm)
        norms.append(float(out.norm))
        kept = torch.cat([param.grad.flatten() for param in parameters.values() if param.grad is not None])
        as_torch = exact * min(1.0, max_norm / (norms[-1] + 1e-6))
        left_alone += torch.allclose(kept, as_torch, rtol=1e-5, atol=0.0)
        cut += out.share != 1.0
        if out.reaches_memory:
            for channels in ranks.channels:
                channels.memory.cut(out.share, out.rest, out.turn)
        for channels in ranks.channels:
            channels.cuts = clipper.cuts
        with torch.no_grad():
            for one in parameters.values():
                one -= RATE * one.grad  # type: ignore[operator]
    flat = torch.cat([param.detach().flatten() for param in model.parameters()])
    return flat, norms, ranks.channels[rank].memory.state_dict(), left_alone, cut


def _flat(parameters: dict[str, nn.Parameter], bucket: Bucket) -> torch.Tensor:
    return torch.cat([parameters[name].grad.flatten() for name in bucket.names])  # type: ignore[union-attr]
