"""A module of one layer and its optimizer, for tests of the agent in one process."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def pair() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    module = DistributedDataParallel(nn.Linear(4, 2))
    return module, torch.optim.SGD(module.parameters(), lr=0.1)


def step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    module(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
