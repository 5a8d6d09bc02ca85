"""Every codec and every memory under another default dtype, in one agent for each."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent
from tests.ranks.scenarios.model import fingerprint, net

LAYERS, WIDTH, STEPS = 3, 32, 3


def any_default_dtype(
    rank: int, world: int, folder: str, default: str, model: str, cells: list[list[str]]
) -> dict[str, Any]:
    """A few steps of each cell, a codec with a memory, from the same start."""
    start = net(WIDTH, LAYERS).to(getattr(torch, model))
    torch.set_default_dtype(getattr(torch, default))
    found: dict[str, Any] = {}
    try:
        module = DistributedDataParallel(start, bucket_cap_mb=0.003)
        first = [parameter.detach().clone() for parameter in module.parameters()]
        optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
        options: dict[str, Any] = {"policy": "static:cf=8", "window": 4, "job": f"{default}-{model}"}
        with Agent(module, optimizer, data_dir=folder, controller=None, **options) as agent:
            assert agent._parts is not None
            loop, failed = agent._parts.loop, 0
            for number, (compressor, memory) in enumerate(cells):
                with torch.no_grad():
                    for parameter, begun in zip(module.parameters(), first, strict=True):
                        parameter.copy_(begun)
                agent._parts.memory.load_state_dict({})
                agent.switch(compressor=compressor, memory=memory)
                cfs, loss = [], torch.tensor(math.nan)
                for step in range(STEPS):
                    generator = torch.Generator().manual_seed(1000 * (STEPS * number + step) + rank)
                    x = torch.randn(16, WIDTH, generator=generator, dtype=torch.float32)
                    y = (x[:, :10].sum(1) > 0).long() + 3 * (x[:, 0] > 1).long()
                    cfs.append(loop.plan.cf)
                    loss = nn.functional.cross_entropy(module(x.to(first[0].dtype)), y)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                found[f"{compressor} {memory}"] = {
                    "parameters": fingerprint(module),
                    "loss": float(loss.detach()),
                    "failed": loop.totals.failed_steps - failed,
                    "compressed": max(cfs) > 1.0,
                }
                failed = loop.totals.failed_steps
            buckets = len(agent._session.layout)
    finally:
        torch.set_default_dtype(torch.float32)
    return {"cells": found, "buckets": buckets}
