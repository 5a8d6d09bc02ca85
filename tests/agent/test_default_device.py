"""A training may set torch's default device: what the agent makes is where the gradients are."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac import memories
from gravac_agent import Agent

CASES: list[dict[str, Any]] = [
    *({"policy": policy} for policy in ("auto", "observe", "dense", "gravac", "warmup", "roundrobin")),
    *(
        {"compressor": name}
        for name in ("int4", "randomk", "powersgd", "majority", "bernoulli", "qsgd-elias")
    ),
    *({"memory": name} for name in memories.MEMORIES.names()),
    {"adapt_optimizer": True, "resumes": True},
    {"nonfinite": "propagate"},
]


@contextmanager
def on_meta() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_training_under_meta_is_training_without_it(
    world_of_one: None, tmp_path: Path, case: dict[str, Any]
) -> None:
    found: list[list[torch.Tensor]] = []
    state: dict[str, Any] = {}
    for number, context in enumerate((on_meta(), nullcontext())):
        torch.manual_seed(0)
        module = DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 8)))
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        x = torch.randn(16, 32)
        settings = {"policy": "static:cf=4", "controller": None, "window": 4} | case
        parts = 1 + settings.pop("resumes", False)
        with context:
            for part in range(parts):
                with Agent(module, optimizer, data_dir=tmp_path / f"{number}{part}", **settings) as agent:
                    if part:
                        agent.load_state_dict(state)
                    for _ in range(6):
                        module(x).square().mean().backward()
                        agent.clip_grad_norm_(1.0)
                        optimizer.step()
                        optimizer.zero_grad()
                        agent.log(loss=1.0)
                    state = agent.state_dict()
        found.append([one.detach() for one in module.parameters()])
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
