"""Every codec under another default device, in one agent with threads and in one on streams."""

from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent
from tests.ranks.scenarios.model import fingerprint, net
from tests.support.streams.at_once import streams_for_agents

LAYERS, WIDTH, STEPS = 3, 32, 3


def any_default_device(
    rank: int, world: int, folder: str, streams: bool, codecs: list[str]
) -> dict[str, Any]:
    """A few steps of each codec, and a checkpoint of it, with torch's default device on ``meta`` and as it is."""
    found: dict[str, Any] = {}
    for default in ("meta", None):
        module = DistributedDataParallel(net(WIDTH, LAYERS), bucket_cap_mb=0.003)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
        torch.set_default_device(default)
        try:
            with streams_for_agents() if streams else nullcontext():
                found[str(default)] = _train(module, optimizer, rank, f"{folder}/{default}", codecs)
        finally:
            torch.set_default_device(None)
    return found


def _train(
    module: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    rank: int,
    folder: str,
    codecs: list[str],
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, codec in enumerate(codecs):
        options: dict[str, Any] = {"compressor": codec, "policy": "static:cf=8", "window": 2}
        state: dict[str, Any] = {}
        for part in range(2):  # the second resumes from the first
            with Agent(module, optimizer, data_dir=f"{folder}/{part}", controller=None, **options) as agent:
                if part:
                    agent.load_state_dict(state)
                for step in range(STEPS):
                    draw = torch.Generator().manual_seed(1000 * (2 * number + part) + 10 * step + rank)
                    x = torch.randn(16, WIDTH, generator=draw, device="cpu")
                    module(x).square().mean().backward()
                    agent.clip_grad_norm_(1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    agent.log(loss=1.0)
                parts = agent._parts
                assert parts is not None
                failed = parts.loop.totals.failed_steps
                state = agent.state_dict()
            found[f"{codec} {part}"] = [fingerprint(module), failed]
    return found
