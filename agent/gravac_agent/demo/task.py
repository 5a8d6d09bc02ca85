"""A demo task: a model, its data, how it is trained, and how its held-out loss is measured."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

Batch = tuple[Tensor, Tensor]
"""Inputs and the class of each position: (n, …) and (n,) or (n, length)."""


class TaskError(Exception):
    """The task cannot run here; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task on one rank.

    Attributes:
        name: As ``gravac demo --task`` has it.
        model: The same on all ranks.
        optimizer: Makes the optimizer from the model's parameters; its learning rate is the peak.
        batches: Training batches of this rank, without end.
        heldout: Held-out batches of this rank.
        clip_norm: Largest norm of the exchanged gradient that the optimizer gets.
        ramp_steps: Steps over which the learning rate grows to its peak.
        bucket_mb: Size of DDP's buckets, in MB.
    """

    name: str
    model: nn.Module
    optimizer: Callable[[Iterator[nn.Parameter]], Optimizer]
    batches: Iterator[Batch]
    heldout: Sequence[Batch]
    clip_norm: float
    ramp_steps: int
    bucket_mb: float


def loss_of(scores: Tensor, classes: Tensor) -> Tensor:
    """Return the mean cross-entropy per predicted class, in nats.

    Args:
        scores: Of every class, shape ``(n, classes)`` or ``(n, length, classes)``.
        classes: The right ones, shape ``(n,)`` or ``(n, length)``.
    """
    return cross_entropy(scores.flatten(0, -2), classes.flatten())


def rate_share(step: int, steps: int, ramp_steps: int) -> float:
    """Return the learning rate at a step as a share of its peak: up over the ramp, then a cosine down to 0.05."""
    ramp = min(1.0, (step + 1) / ramp_steps)
    return ramp * (0.05 + 0.95 * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2)


def evaluate(task: Task) -> tuple[float, float]:
    """Return the mean held-out loss (nats per class) and the share of right answers, over all ranks."""
    sums = torch.zeros(3, dtype=torch.float64)
    task.model.eval()
    with torch.no_grad():
        for inputs, classes in task.heldout:
            scores = task.model(inputs)
            right = (scores.argmax(-1) == classes).sum().item()
            sums += torch.tensor([loss_of(scores, classes).item() * classes.numel(), right, classes.numel()])
    dist.all_reduce(sums)
    loss, right, count = sums.tolist()
    return loss / count, right / count


def elements_of(model: nn.Module) -> int:
    """Return how many elements a gradient of the model has."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
