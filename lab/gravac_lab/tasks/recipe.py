"""A recipe: a model, its data, how it is trained, and how its held-out loss is measured. A task: one rank of it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from gravac.wording import did_you_mean

T = TypeVar("T")

Batch = tuple[Tensor, Tensor]
"""Inputs and the class of each position: (n, …) and (n,) or (n, length)."""


class TaskError(Exception):
    """The task does not exist or cannot run here; the message says what to do."""


class Data(Protocol):
    """Training and held-out data. Loaded once, it serves all ranks of a process."""

    @property
    def source(self) -> str:
        """Where the data come from, in words."""
        ...

    def batches(self, rank: int, world_size: int, seed: int, batch_size: int) -> Iterator[Batch]:
        """Yield random training batches of one rank, without end, from its share of the training data.

        The same arguments give the same batches.
        """
        ...

    def heldout(self, rank: int = 0, world_size: int = 1) -> Sequence[Batch]:
        """Return every ``world_size``-th held-out batch, from the ``rank``-th on."""
        ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """A learning rate that grows in a straight line, then falls by a cosine.

    Attributes:
        ramp_steps: Steps over which it grows to its peak.
        floor: Where the cosine ends, as a share of the peak.
    """

    ramp_steps: int
    floor: float

    def __call__(self, step: int, steps: int) -> float:
        """Return the learning rate at a step of ``steps``, as a share of its peak."""
        fallen = (1 + math.cos(math.pi * min(1.0, step / steps))) / 2
        return self.ramp(step) * (self.floor + (1 - self.floor) * fallen)

    def ramp(self, step: int) -> float:
        """Return the share of the peak that the ramp alone allows."""
        return min(1.0, (step + 1) / self.ramp_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One rank of a recipe.

    Attributes:
        recipe: The recipe.
        model: The same weights on all ranks.
        batches: Training batches of this rank, without end.
        heldout: Held-out batches of this rank.
    """

    recipe: "Recipe"
    model: nn.Module
    batches: Iterator[Batch]
    heldout: Sequence[Batch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is trained, for any number of ranks, in processes of their own or simulated in one.

    Attributes:
        name: Name as ``tasks.make`` reads it.
        build_model: Makes the model from a seed, by ``seeded``.
        optimizer: Makes the optimizer from the model's parameters; its learning rate is the peak.
        optimizer_kind: ``sgd``, ``adamw``, ``adamw-aged``, ``adamw-low-beta``, ``muon`` or ``lamb``.
        schedule: The learning rate at each step.
        clip_norm: Largest norm of the averaged gradient that the optimizer gets; None: any.
        data: Training and held-out data.
        global_batch: Sequences or images in a step of all ranks together, however many there are. So curves of
            different numbers of ranks are comparable and cost the same.
        rank_batch: Sequences or images in a step of one rank where each rank adds work, as in ``gravac demo``.
        bucket_mb: Size of DDP's buckets, in MB.
    """

    name: str
    build_model: Callable[[int], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    optimizer_kind: str
    schedule: Schedule
    clip_norm: float | None
    data: Data
    global_batch: int
    rank_batch: int
    bucket_mb: float = 1.0

    def batches(self, rank: int, world_size: int, seed: int) -> Iterator[Batch]:
        """Yield this rank's part of the global batch of each step, without end.

        Args:
            rank: The rank.
            world_size: How many ranks there are; it must divide the global batch.
            seed: Seed of the choice.

        Raises:
            TaskError: The global batch cannot be divided among so many ranks.
        """
        part, left = divmod(self.global_batch, world_size)
        if left:
            raise TaskError(
                f"{self.name}: {world_size} ranks cannot share a batch of {self.global_batch} equally; choose another "
                f"number of ranks, or the setting batch={world_size * (part + 1)}"
            )
        return self.data.batches(rank, world_size, seed, part)

    def clip(self, parameters: Iterable[nn.Parameter]) -> None:
        """Clip the gradients of the parameters, if the recipe does."""
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self.clip_norm)

    def part_of(self, rank: int, world_size: int, seed: int) -> Task:
        """Make one rank of a job that shares ``global_batch``, as simulated ranks do.

        Raises:
            TaskError: The global batch cannot be divided among so many ranks.
        """
        return Task(
            recipe=self,
            model=self.build_model(seed),
            batches=self.batches(rank, world_size, seed),
            heldout=self.data.heldout(rank, world_size),
        )

    def on_rank(self, rank: int, world_size: int, seed: int) -> Task:
        """Make one rank of a job in which each rank has a batch of ``rank_batch``."""
        return Task(
            recipe=self,
            model=self.build_model(seed),
            batches=self.data.batches(rank, world_size, seed, self.rank_batch),
            heldout=self.data.heldout(rank, world_size),
        )


@dataclass(frozen=True, slots=True)
class Score:
    """How well a model does on held-out batches; scores of several ranks add up.

    Attributes:
        nats: Cross-entropy, summed over the predicted classes.
        right: How many classes had the highest score.
        count: Predicted classes.
    """

    nats: float = 0.0
    right: int = 0
    count: int = 0

    @property
    def loss(self) -> float:
        """Mean cross-entropy in nats per predicted class."""
        return self.nats / self.count

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.right / self.count

    def __add__(self, other: "Score") -> "Score":
        return Score(self.nats + other.nats, self.right + other.right, self.count + other.count)


def evaluate(model: nn.Module, batches: Iterable[Batch]) -> Score:
    """Measure a model on held-out batches. Leaves it in the mode, training or not, that it was in."""
    training, score = model.training, Score()
    model.eval()
    with torch.no_grad():
        for inputs, classes in batches:
            scores = model(inputs)
            right = int((scores.argmax(-1) == classes).sum())
            score += Score(loss_of(scores, classes).item() * classes.numel(), right, classes.numel())
    model.train(training)
    return score


def loss_of(scores: Tensor, classes: Tensor) -> Tensor:
    """Return the mean cross-entropy per predicted class, in nats.

    Args:
        scores: Of every class, shape ``(n, classes)`` or ``(n, length, classes)``.
        classes: The right ones, shape ``(n,)`` or ``(n, length)``.
    """
    return cross_entropy(scores.flatten(0, -2), classes.flatten())


def seeded(build: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    """Return a function that builds a model from a seed and leaves torch's random state as it was."""

    def from_seed(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build()

    return from_seed


def choose(setting: str, value: str, choices: Mapping[str, T]) -> T:
    """Return the choice of that name. Raises TaskError, with the closest names and all of them, if there is none."""
    if value not in choices:
        hint = did_you_mean(str(value), choices)
        raise TaskError(f"{setting}={value!r} is unknown{hint}; choose one of {', '.join(choices)}")
    return choices[value]


def elements_of(model: nn.Module) -> int:
    """Return how many elements a gradient of the model has."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
