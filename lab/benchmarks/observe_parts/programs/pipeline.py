"""Two stages of a pipeline, which exchange micro-batches one by one (GPipe)."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import mse_loss

from observe_parts.models import WIDTH, batches, perceptron, start
from observe_parts.turns import Turns

MICRO_BATCHES, SIZE = 4, 512


def first(stage: torch.nn.Module, inputs: Tensor) -> Tensor:
    """Run the first stage's part of a step."""
    outputs = []
    for part in inputs.chunk(MICRO_BATCHES):
        outputs.append(stage(part))
        dist.send(outputs[-1].detach(), 1)
    for output in outputs:
        gradient = torch.zeros(SIZE, WIDTH)
        dist.recv(gradient, 1)
        output.backward(gradient)
    return torch.zeros(())


def second(stage: torch.nn.Module, targets: Tensor) -> Tensor:
    """Run the second stage's part of a step."""
    losses, given = [], []
    for part in targets.chunk(MICRO_BATCHES):
        given.append(torch.zeros(SIZE, WIDTH))
        dist.recv(given[-1], 0)
        losses.append(mse_loss(stage(given[-1].requires_grad_()), part))
    for loss, part in zip(losses, given, strict=True):
        loss.backward()
        assert part.grad is not None
        dist.send(part.grad, 0)
    return torch.stack([loss.detach() for loss in losses]).mean()


rank = start()
stage = perceptron(4)
optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3)
with Turns() as turns:
    for inputs, targets in batches(0, MICRO_BATCHES * SIZE):
        loss = second(stage, targets) if rank else first(stage, inputs)
        optimizer.step()
        optimizer.zero_grad()
        if not turns.stepped(loss):
            break
dist.destroy_process_group()
