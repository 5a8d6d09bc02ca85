"""Task ``lm``: an LSTM that predicts the next byte of Python source text.

The text is the source of Python's own standard library, a real corpus that every machine with Python has. Sizes are
chosen so that, on one core, a step computes for about 40 ms and its gradient is 4.2 MB: 0.34 s at 100 Mbit/s, a network
worth compressing for. SGD with momentum learns this faster than Adam does, with compression and without.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from gravac_agent.demo.task import Batch, Task, TaskError

MAX_BYTES = 6_000_000
"""Most bytes of text that are read. Python 3.11 has about 4.7 million in its top folder."""
HELDOUT_EVERY = 10
"""Every tenth file is held out, whole, so that no held-out line has a neighbor in the training text."""
BATCH, LENGTH = 16, 64
"""Sequences in a batch of one rank, bytes in a sequence."""
HELDOUT_LENGTH, HELDOUT_SEQUENCES = 256, 384
WIDTH = 448
"""Width of the LSTM."""


class ByteLSTM(nn.Module):
    """Maps bytes, shape ``(n, length)``, to scores of the next byte, shape ``(n, length, 256)``."""

    def __init__(self, width: int = WIDTH, embedding: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, embedding)
        self.lstm = nn.LSTM(embedding, width, batch_first=True)
        self.scores = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(text))
        scores: Tensor = self.scores(hidden)
        return scores


def build(rank: int, world_size: int, seed: int, width: int = WIDTH) -> Task:
    """Make the task on one rank: a stretch of the training text, and every ``world_size``-th held-out batch.

    Args:
        rank: This rank.
        world_size: How many ranks there are.
        seed: Seed of the weights, which are equal on all ranks, and of the batches.
        width: Width of the LSTM.
    """
    train, heldout = split_text()
    torch.manual_seed(seed)
    return Task(
        name="lm",
        model=ByteLSTM(width),
        optimizer=partial(torch.optim.SGD, lr=2.0, momentum=0.9),
        batches=_draw(train.tensor_split(world_size)[rank], seed * 1000 + rank),
        heldout=_cut(heldout)[rank::world_size],
        clip_norm=1.0,
        ramp_steps=10,
        bucket_mb=1.0,
    )


def _draw(text: Tensor, seed: int) -> Iterator[Batch]:
    """Yield batches of sequences from random places without end; the targets are the next bytes."""
    generator = torch.Generator().manual_seed(seed)
    within = torch.arange(LENGTH + 1)
    while True:
        starts = torch.randint(len(text) - LENGTH, (BATCH, 1), generator=generator)
        sequences = text[starts + within].long()
        yield sequences[:, :-1], sequences[:, 1:]


def _cut(text: Tensor) -> list[Batch]:
    """Cut held-out sequences, spread evenly over all of the text."""
    count = min(HELDOUT_SEQUENCES, len(text) // (HELDOUT_LENGTH + 1))
    stride = (len(text) - HELDOUT_LENGTH - 1) // count
    rows = text.unfold(0, HELDOUT_LENGTH + 1, stride)[:count].long()
    return [(part[:, :-1], part[:, 1:]) for part in rows.split(16)]


def split_text(source: Path | None = None, max_bytes: int = MAX_BYTES) -> tuple[Tensor, Tensor]:
    """Read training and held-out text.

    Args:
        source: Folder whose ``*.py`` are read, in order of their names; None: the standard library's. The same Python
            gives the same bytes.
        max_bytes: Most bytes read.

    Returns:
        Training and held-out bytes, uint8 of one dimension.

    Raises:
        TaskError: When there is too little text to learn from.
    """
    source = Path(os.__file__).parent if source is None else source
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    left = max_bytes
    for number, path in enumerate(sorted(source.glob("*.py"))):
        text = path.read_bytes()[:left]
        left -= len(text)
        parts[number % HELDOUT_EVERY == HELDOUT_EVERY - 1].append(text)
    train, heldout = (b"".join(part) for part in parts)
    if len(train) < 100_000 or len(heldout) < 10_000:
        raise TaskError(
            f"{source} holds only {len(train) + len(heldout)} bytes of Python source: this Python comes without the "
            "source of its standard library; use another Python, or the digits task"
        )
    return torch.frombuffer(bytearray(train), dtype=torch.uint8), torch.frombuffer(
        bytearray(heldout), dtype=torch.uint8
    )
