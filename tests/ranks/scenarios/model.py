"""The small models the scenarios train, and plain steps of them."""

import ctypes
import hashlib
import logging
import math
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent
from gravac_agent.state.by_rank import unpack


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def each_of(
    rank: int, world: int, folder: str, which: str, cases: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """One scenario with several sets of arguments, in one set of processes: starting those takes longest."""
    from tests.ranks import scenarios

    function = getattr(scenarios, which)
    return [function(rank, world, f"{folder}/{number}", **case) for number, case in enumerate(cases)]


def net(width: int = 64, layers: int = 8, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    stack: list[nn.Module] = []
    for _ in range(layers):
        stack += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*stack, nn.Linear(width, 10))


def wrapped(
    buckets: int = 8, layers: int = 8, buffer: bool = False, **options: Any
) -> DistributedDataParallel:
    """A net in DDP with about that many buckets (1: exactly one, 2: exactly two). ``buffer``: which DDP broadcasts."""
    model = net(layers=layers)
    if buffer:
        model.register_buffer("broadcast", torch.ones(1000))
    total = sum(parameter.numel() for parameter in model.parameters()) * 4
    shares = {1: 0.5, 2: 1.8}.get(buckets, 2 * buckets)  # DDP closes a bucket when it is past the cap
    cap = total / shares / 2**20
    return DistributedDataParallel(model, bucket_cap_mb=cap, **options)


def batch(rank: int, step: int, width: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, width, generator=generator)
    return x, (x[:, :10].sum(1) > 0).long() + 3 * (x[:, 0] > 1).long()


def fingerprint(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in module.parameters():
        whole: Any = getattr(parameter.detach(), "_local_tensor", parameter.detach()).contiguous()
        digest.update(ctypes.string_at(whole.data_ptr(), whole.nbytes))
    return digest.hexdigest()


def overflow(module: nn.Module, rank: int) -> None:
    """Make this backward's gradient infinite on rank 1."""
    if rank != 1:
        return
    parameter = next(module.parameters())

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        handle.remove()
        return torch.full_like(gradient, float("inf"))

    handle = parameter.register_hook(spoil)


def flat(agent: Agent) -> dict[str, Any]:
    """The state of this rank as one dictionary, without the layout of checkpoints."""
    (state,) = unpack(agent.state_dict())
    return state


def train(
    module: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    rank: int,
    steps: range,
    each: Any = None,
) -> float:
    loss = torch.tensor(math.nan)
    for step in steps:
        x, y = batch(rank, step)
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        if each is not None:
            each(step)
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())
