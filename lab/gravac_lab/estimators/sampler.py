"""Estimators in a real trainer: the samples that a ``DataLoader`` fetches, and their weights."""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from gravac.compressors import Key
from gravac_lab.estimators.base import Estimator

_CHUNK = 4096  # draws made at once; only speed depends on it being large


class EstimatorSampler(Sampler[int]):
    """Draws indices with replacement by an estimator's probabilities, different ones on every rank and in every pass.

    ``DataLoader(WeightedDataset(data, estimator), batch_size=32, sampler=EstimatorSampler(estimator, rank=rank))``,
    where ``data`` is what this rank alone holds (or all data on every rank: both are unbiased).

    Args:
        estimator: Has the probabilities.
        draws: Samples per pass; None means as many as there are.
        seed: Equal on all ranks.
        rank: This rank.

    Raises:
        ValueError: ``draws`` is below 1.
    """

    def __init__(
        self, estimator: Estimator, *, draws: int | None = None, seed: int = 0, rank: int = 0
    ) -> None:
        if draws is not None and draws < 1:
            raise ValueError(f"draws={draws}: a pass needs at least 1 draw")
        self.estimator = estimator
        self.draws = estimator.samples if draws is None else draws
        self._seed, self._rank, self._next_pass = seed, rank, 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the pass that starts next (torch calls it epoch). Only needed on resume: passes
        count up.
        """
        self._next_pass = epoch

    def __len__(self) -> int:
        return self.draws

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(Key(self._seed, self._next_pass, 0, self._rank).own_seed())
        self._next_pass += 1
        return self._indices(generator)

    def _indices(self, generator: torch.Generator) -> Iterator[int]:
        for begin in range(0, self.draws, _CHUNK):
            yield from self.estimator.draw(generator, min(_CHUNK, self.draws - begin)).indices.tolist()


class WeightedDataset(Dataset[tuple[Any, Tensor]]):
    """A map-style dataset that returns each item with its weight, float32: ``for (x, y), weight in loader: …``

    Then ``loss = (weight * losses).mean()`` with losses of shape ``(b,)`` has an unbiased gradient.

    Args:
        dataset: Has a length.
        estimator: Made for as many samples.

    Raises:
        ValueError: The estimator was made for another number of samples.
    """

    def __init__(self, dataset: Dataset[Any], estimator: Estimator) -> None:
        numel = len(cast(Any, dataset))
        if numel != estimator.samples:
            raise ValueError(f"dataset has {numel} samples, the estimator was made for {estimator.samples}")
        self.dataset = dataset
        self._weight = estimator.weight.float()

    def __len__(self) -> int:
        return self._weight.numel()

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        return self.dataset[index], self._weight[index]
