"""DDP bound by its data loader, whose disk is slow."""

import time
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from observe_parts.loop import train
from observe_parts.models import WIDTH, perceptron, start

READING_SECONDS = 0.0004


class Slow(Dataset[tuple[Tensor, Tensor]]):
    """Samples that each take a while to read."""

    def __init__(self, rank: int) -> None:
        self._inputs = torch.randn(1024, WIDTH, generator=torch.Generator().manual_seed(rank))

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        time.sleep(READING_SECONDS)
        return self._inputs[place], self._inputs[place].square()


def epochs(loader: DataLoader[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from loader


rank = start()
model = DistributedDataParallel(perceptron(), bucket_cap_mb=0.6)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train(model, optimizer, epochs(DataLoader(Slow(rank), batch_size=256)))
