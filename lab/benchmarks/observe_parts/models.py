"""What the programs share: models and data, so small that a step takes 50 to 500 ms on a core, and the agent."""

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH = 384
AGENT = "OBSERVE_AGENT"
"""Variable with the agent's settings, where a program is to run with one."""


def start() -> int:
    """Join the job and return the rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return dist.get_rank()


def agent_settings() -> dict[str, Any] | None:
    """Return the keywords of ``gravac.Agent``; None: none is to run."""
    return json.loads(os.environ[AGENT]) if AGENT in os.environ else None


def agent(model: nn.Module, optimizer: torch.optim.Optimizer) -> AbstractContextManager[Any]:
    """Return the agent that is to run, if any."""
    settings = agent_settings()
    if settings is None:
        return nullcontext()
    from gravac import Agent

    return Agent(model, optimizer, **settings)


def perceptron(layers: int = 6, width: int = WIDTH) -> nn.Sequential:
    """Make a model of 148 k parameters a layer."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)))


def batches(rank: int, size: int, width: int = WIDTH) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets of a fixed linear map, other ones on each rank."""
    generator = torch.Generator().manual_seed(rank)
    truth = torch.randn(width, width, generator=torch.Generator().manual_seed(99)) / width**0.5
    pool = [torch.randn(size, width, generator=generator) for _ in range(4)]
    while True:
        for x in pool:
            yield x, x @ truth
