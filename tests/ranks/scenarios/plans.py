"""Jobs whose policy changes codec, CF and window length: what is sent when, and what is lost."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gravac_agent import Agent
from gravac_agent.state.by_rank import unpack
from tests.ranks.scenarios.model import batch, fingerprint, flat, net, train, wrapped
from tests.support.ranks.simulation import simulate
from tests.support.scripted import Play, ScriptedPolicy

RATE = 0.02


def plans_in_turn(
    rank: int, world: int, folder: str, plays: list[list[Any]], steps: int, window: int, buckets: int = 6
) -> dict[str, Any]:
    """Follow a script. Returns what each step sent, and how far sent + residual is from the gradients after each."""
    module = wrapped(buckets=buckets)
    begun = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    names = [name for name, _ in module.module.named_parameters()]
    plain = net()
    came = [torch.zeros_like(p, dtype=torch.float64) for p in plain.parameters()]
    went = [torch.zeros_like(total) for total in came]
    sent, layouts, worst, residuals = [], [], [], []

    def count(_: int) -> None:
        for total, parameter in zip(went, module.parameters(), strict=True):
            assert parameter.grad is not None
            total += parameter.grad.double()

    policy = ScriptedPolicy(*(Play(*play) for play in plays))
    options: dict[str, Any] = {"controller": None, "job": "planned", "window": window}
    with Agent(module, optimizer, data_dir=folder, policy=policy, compressor="topk", **options) as agent:
        assert agent._parts is not None
        loop, memory = agent._parts.loop, agent._parts.memory
        for step in range(steps):
            plain.load_state_dict(module.module.state_dict())
            for one in range(world):  # the dense mean gradient at the same parameters
                plain.zero_grad()
                x, y = batch(one, step)
                nn.functional.cross_entropy(plain(x), y).backward()
                for total, parameter in zip(came, plain.parameters(), strict=True):
                    assert parameter.grad is not None
                    total += parameter.grad.double() / world
            state = agent.state
            assert state is not None
            sent.append((state.codec, state.cf, state.epoch))
            train(module, optimizer, rank, range(step, step + 1), count)
            layouts.append([list(bucket.names) for bucket in agent._session.layout])
            held, off, largest = memory.state_dict(), 0.0, 0.0
            for name, total, gone in zip(names, came, went, strict=True):
                residual = held[name].double() if name in held else torch.zeros(gone.numel()).double()
                dist.all_reduce(residual)
                residual = residual.view_as(gone) / world
                off = max(off, float((total - gone - residual).abs().max()))
                largest = max(largest, float(residual.abs().max()))
            worst.append(off)
            residuals.append(largest)
        nbytes = [level.payload_bytes for level in loop.window.levels.values()]
    found = {
        "sent": sent,
        "worst": worst,
        "residuals": residuals,
        "parameters": fingerprint(module),
        "failed": loop.totals.failed_steps,
        "buckets": len(layouts[-1]),
        "payload": nbytes,
    }
    if rank == 0:
        expected = simulate(
            net,
            batch,
            world=world,
            compressor="topk",
            memory="residual",
            collective="gather",
            cfs=[cf for _, cf, _ in sent],
            codecs=[codec for codec, _, _ in sent],
            layouts=layouts,
            rate=RATE,
        )
        moved = sum(float((one - first).square().sum()) for one, first in zip(expected, begun, strict=True))
        pairs = zip(expected, module.parameters(), strict=True)
        off = sum(float((one - ours.detach()).square().sum()) for one, ours in pairs)
        found |= {"off_ratio": math.sqrt(off / moved)}
    return found


def resumed_between_plans(
    rank: int, world: int, folder: str, at: int, plays: list[list[Any]], epsilon: float = 0.0
) -> dict[str, Any]:
    """20 steps in one go, and with a checkpoint on disk after step ``at``; then one of a run without these codecs."""

    def make(job: str, *script: Play) -> tuple[Any, Any, Agent]:
        module = wrapped(buckets=8)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        policy = ScriptedPolicy(*script, epsilon=epsilon)
        options: dict[str, Any] = {"data_dir": folder, "controller": None, "window": 6}
        return (
            module,
            optimizer,
            Agent(module, optimizer, job=job, policy=policy, compressor="topk", **options),
        )

    script = [Play(*play) for play in plays]
    module, optimizer, agent = make("whole", *script)
    sent = []
    with agent:
        for step in range(20):
            assert agent.state is not None
            sent.append((agent.state.codec, agent.state.cf))
            train(module, optimizer, rank, range(step, step + 1))
    whole = fingerprint(module)
    module, optimizer, agent = make("first", *script)
    path = f"{folder}/state{rank}.pt"
    with agent:
        train(module, optimizer, rank, range(at))
        saved = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({"agent": agent.state_dict(), **saved}, path)
    module, optimizer, agent = make("second", *script)
    state = torch.load(path, weights_only=True)
    again = []
    with agent:
        agent.load_state_dict(state["agent"])
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        for step in range(at, 20):
            assert agent.state is not None
            again.append((agent.state.codec, agent.state.cf))
            train(module, optimizer, rank, range(step, step + 1))
    resumed = fingerprint(module)
    module, optimizer, agent = make("third", Play(None, 10.0))
    with agent:
        agent.load_state_dict(state["agent"])
        assert agent.state is not None
        plan = [agent.state.codec, agent.state.cf]
        kept, saved = flat(agent)["residual"], unpack(state["agent"])[0]["residual"]
        same = kept.keys() == saved.keys() and all(torch.equal(kept[name], saved[name]) for name in saved)
        held = max(float(value.abs().max()) for value in saved.values())
        train(module, optimizer, rank, range(at, 20))
    unknown = {"plan": plan, "same": same, "held": held}
    return {"whole": whole, "resumed": resumed, "sent": sent, "again": again, "unknown": unknown}
