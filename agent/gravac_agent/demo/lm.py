"""Task ``lm``: an LSTM that predicts the next byte of Python source text.

Sizes are chosen so that, on one core, a step computes for about 40 ms and its gradient is 4.2 MB: 0.34 s at
100 Mbit/s, which is a network worth compressing for. SGD with momentum learns this faster than Adam does, with
compression and without.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from gravac_agent.demo import corpus
from gravac_agent.demo.task import Batch, Task

BATCH, LENGTH = 16, 64
"""Sequences in a batch of one rank, bytes in a sequence."""
HELDOUT_LENGTH, HELDOUT_SEQUENCES = 256, 384


class ByteLSTM(nn.Module):
    """Bytes (n, length) to scores of the next byte (n, length, 256)."""

    def __init__(self, width: int = 448, embedding: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, embedding)
        self.lstm = nn.LSTM(embedding, width, batch_first=True)
        self.scores = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(text))
        scores: Tensor = self.scores(hidden)
        return scores


def build(rank: int, world_size: int, seed: int) -> Task:
    """The task on one rank: its own stretch of the training text, every ``world_size``-th held-out batch."""
    train, heldout = corpus.split()
    torch.manual_seed(seed)
    return Task(
        name="lm",
        model=ByteLSTM(),
        optimizer=partial(torch.optim.SGD, lr=2.0, momentum=0.9),
        batches=_draw(train.tensor_split(world_size)[rank], seed * 1000 + rank),
        heldout=_cut(heldout)[rank::world_size],
        clip_norm=1.0,
        ramp_steps=10,
        bucket_mb=1.0,
    )


def _draw(text: Tensor, seed: int) -> Iterator[Batch]:
    """Endless batches of sequences from random places; the targets are the bytes one further."""
    generator = torch.Generator().manual_seed(seed)
    within = torch.arange(LENGTH + 1)
    while True:
        starts = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=generator)
        taken = text[starts + within].long()
        yield taken[:, :-1], taken[:, 1:]


def _cut(text: Tensor) -> list[Batch]:
    """Held-out sequences spread evenly over all of the text."""
    count = min(HELDOUT_SEQUENCES, len(text) // (HELDOUT_LENGTH + 1))
    stride = (len(text) - HELDOUT_LENGTH - 1) // count
    rows = text.unfold(0, HELDOUT_LENGTH + 1, stride)[:count].long()
    return [(part[:, :-1], part[:, 1:]) for part in rows.split(16)]
