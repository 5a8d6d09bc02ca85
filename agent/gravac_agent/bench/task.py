"""What the benchmarks train: the demo's language model, of any width."""

from dataclasses import replace

import torch

from gravac_agent.demo import lm
from gravac_agent.demo.task import Task

WIDTH = 872
"""Width of the language model with 3.5 M parameters (3,511,616)."""


def build(rank: int, world_size: int, seed: int, width: int) -> Task:
    """The demo's language model task with a model of this width, the same weights on all ranks."""
    task = lm.build(rank, world_size, seed)
    torch.manual_seed(seed)
    return replace(task, model=lm.ByteLSTM(width=width))
