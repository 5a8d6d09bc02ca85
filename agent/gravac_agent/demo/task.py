"""What a demo task is: a model, its data and how to train it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

Batch = tuple[Tensor, Tensor]
"""Inputs and the class of each position: (n, …) and (n,) or (n, length)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task on one rank. All ranks build the same ``model``; ``batches`` and ``heldout`` are this rank's share.

    The loss is the mean cross-entropy per predicted class, in nats. ``clip_norm``: largest norm of the exchanged
    gradient that the optimizer gets. ``ramp_steps``: steps over which the learning rate grows to its peak; then it
    falls along a cosine.
    """

    name: str
    model: nn.Module
    optimizer: Callable[[Iterator[nn.Parameter]], Optimizer]
    batches: Iterator[Batch]
    heldout: Sequence[Batch]
    clip_norm: float
    ramp_steps: int
    bucket_mb: float


class TaskError(Exception):
    """The task cannot run here; the message says what to do."""
