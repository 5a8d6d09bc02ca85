"""The training loop of those programs that have the same: a model, its optimizer, and the programs' data."""

from collections.abc import Callable, Iterator

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Optimizer

from observe_parts.models import agent
from observe_parts.turns import Turns


def train(
    model: nn.Module,
    optimizer: Optimizer,
    data: Iterator[tuple[Tensor, Tensor]],
    before: Callable[[], None] = lambda: None,
) -> None:
    """Train while the harness asks for steps."""
    with agent(model, optimizer), Turns() as turns:
        for inputs, targets in data:
            before()
            loss = mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if not turns.stepped(loss):
                break
    dist.destroy_process_group()
