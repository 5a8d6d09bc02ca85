"""Data with the shape of a9a, w8a and gisette, made here: their smoothness constants, without a download.

``Kind.small`` gives versions of seconds: 8 workers of 150 samples in 40 dimensions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ec_sgd_parts.logistic import Problem, spread

A9A_ATTRIBUTES = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)
"""Values of each categorical attribute after one-hot coding; they sum to 123."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How one stand-in is made. ``shift``: how far from the optimum runs start, in every coordinate."""

    name: str
    workers: int
    samples: int
    features: Callable[[int, torch.Generator], Tensor]
    positive: float
    flipped: float
    shift: float

    def problem(self, seed: int, by_label: bool = False) -> Problem:
        """The stand-in of this seed, dealt out at random or sorted by label (workers then disagree most)."""
        generator = torch.Generator().manual_seed(seed)
        numel = self.workers * self.samples
        features = self.features(numel, generator)
        labels = _labels(features, self.positive, self.flipped, generator)
        shuffled = torch.randperm(numel, generator=generator)
        order = shuffled[torch.argsort(labels[shuffled], stable=True)] if by_label else shuffled
        return spread(
            f"{self.name}, label-sorted" if by_label else self.name, features, labels, self.workers, order
        )


def one_hot(cardinalities: tuple[int, ...]) -> Callable[[int, torch.Generator], Tensor]:
    """Categorical attributes, value r with probability ∝ r^-1.7, present with probability .99049 each (a9a)."""

    def features(numel: int, generator: torch.Generator) -> Tensor:
        blocks = []
        for cardinality in cardinalities:
            law = torch.arange(1, cardinality + 1, dtype=torch.float64) ** -1.7
            value = torch.multinomial(law, numel, replacement=True, generator=generator)
            block = torch.nn.functional.one_hot(value, cardinality).double()
            present = torch.rand(numel, 1, generator=generator, dtype=torch.float64) < 0.99049
            blocks.append(block * present)
        return torch.cat(blocks, 1)

    return features


def words(size: int, mean: float, deviation: float, most: int) -> Callable[[int, torch.Generator], Tensor]:
    """Binary rows of log-normal length, at most ``most``; the first has that many (w8a: lengths differ a lot)."""

    def features(numel: int, generator: torch.Generator) -> Tensor:
        normal = torch.randn(numel, generator=generator, dtype=torch.float64)
        length = (mean + deviation * normal).exp().round().clamp(1, most).long()
        length[0] = most
        weight = 1.0 / (2.5 + torch.arange(size, dtype=torch.float64))
        uniform = torch.rand(numel, size, generator=generator, dtype=torch.float64)
        gumbel = weight.log() - (-uniform.log()).log()  # its largest entries: a draw without replacement
        rank = gumbel.argsort(1, descending=True).argsort(1)
        return (rank < length[:, None]).double()

    return features


def pixels(size: int, blank: int) -> Callable[[int, torch.Generator], Tensor]:
    """Entries in [-1, 1], mostly -1, columns of very different activity; row 0 all -1 but ``blank`` zeros (gisette)."""

    def features(numel: int, generator: torch.Generator) -> Tensor:
        active = 0.476 * torch.rand(size, generator=generator, dtype=torch.float64) ** 3
        scale = (1 + 0.12 * torch.randn(numel, 1, generator=generator, dtype=torch.float64)).clamp(0.3, 1.7)
        differs = torch.rand(numel, size, generator=generator, dtype=torch.float64) < active * scale
        value = torch.rand(numel, size, generator=generator, dtype=torch.float64) ** 0.65
        result = torch.where(differs, value, -torch.ones((), dtype=torch.float64))
        result[0] = -1.0
        result[0, :blank] = 0.0
        return result

    return features


KINDS = {
    "a9a": Kind(
        name="a9a", workers=20, samples=1600, features=one_hot(A9A_ATTRIBUTES),
        positive=0.15, flipped=0.10, shift=1.0,
    ),
    "w8a": Kind(
        name="w8a", workers=20, samples=2485, features=words(300, 2.03, 0.93, 114),
        positive=0.03, flipped=0.01, shift=1.5,
    ),
    "gisette": Kind(
        name="gisette", workers=20, samples=300, features=pixels(5000, 193),
        positive=0.5, flipped=0.02, shift=0.005,
    ),
}  # fmt: skip
SMALL_KINDS = {
    "a9a": Kind(
        name="a9a", workers=8, samples=150, features=one_hot((5,) * 8), positive=0.15, flipped=0.10, shift=1.0
    ),
    "w8a": Kind(
        name="w8a", workers=8, samples=150, features=words(40, 0.9, 0.75, 30),
        positive=0.03, flipped=0.01, shift=1.5,
    ),
    "gisette": Kind(
        name="gisette", workers=8, samples=150, features=pixels(200, 8), positive=0.5, flipped=0.02, shift=0.005
    ),
}  # fmt: skip


def _labels(features: Tensor, positive: float, flipped: float, generator: torch.Generator) -> Tensor:
    """±1: +1 for the ``positive`` share of rows that a random direction likes best per unit of row sum, some flipped.

    Divided by the row's sum so that a plane through the origin separates them: the model has no intercept.
    """
    direction = torch.randn(features.shape[1], generator=generator, dtype=torch.float64)
    score = (
        features
        @ direction
        / features.sum(1).where(features.sum(1) != 0, torch.ones((), dtype=torch.float64))
    )
    threshold = score.sort().values[min(len(score) - 1, math.ceil((1 - positive) * len(score)))]
    labels = torch.where(score >= threshold, 1.0, -1.0).double()
    flip = torch.rand(len(labels), generator=generator, dtype=torch.float64) < flipped
    return torch.where(flip, -labels, labels)
