"""Task ``lm``: an LSTM that predicts the next byte of a text, trained by SGD with momentum.

``gravac demo`` trains it with 1 M parameters on Python's own standard library, a real corpus that every machine with
Python has. On one core a step then computes for about 40 ms and its gradient is 4.2 MB: 0.34 s at 100 Mbit/s, a network
worth compressing for. SGD with momentum learns this faster than Adam does, with compression and without.
"""

from functools import partial
from pathlib import Path

from torch import Tensor, nn

from gravac_lab.tasks import optimizers
from gravac_lab.tasks.data.text import load
from gravac_lab.tasks.recipe import Recipe, Schedule, choose, seeded

RANK_BATCH = 16
"""Sequences in a batch of one rank of the demo and of ``bench train``."""
DEMO_LENGTH, DEMO_HELDOUT_LENGTH, DEMO_HELDOUT = 64, 256, 384
"""Bytes in their sequences, bytes in their held-out sequences, and how many of those."""
WIDTHS = {"0.3m": 208, "1m": 448, "3m": 872, "10m": 1504, "30m": 2656}
"""Width of the LSTM by size; 1m is the demo's, 3m (3,511,616 parameters) that of ``bench train``."""
RATES = {"sgd": 2.0, "adamw": 4e-2, "lamb": 4e-2}
"""Peak learning rates. AdamW's is that of width 208; wider models have less, in proportion."""


class ByteLSTM(nn.Module):
    """Maps bytes, shape ``(n, length)``, to scores of the next byte, shape ``(n, length, 256)``."""

    def __init__(self, width: int, embedding: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, embedding)
        self.lstm = nn.LSTM(embedding, width, batch_first=True)
        self.scores = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(text))
        scores: Tensor = self.scores(hidden)
        return scores


def recipe(
    data: Path | None = None,
    *,
    size: str = "0.3m",
    width: int | None = None,
    text: str = "auto",
    optimizer: str = "sgd",
    rate: float | None = None,
    batch: int = 16,
    length: int = 32,
    heldout: int = 64,
    heldout_length: int = 64,
) -> Recipe:
    """Make the recipe.

    Args:
        data: Folder of text files; None: source code.
        size: Number of parameters, a key of ``WIDTHS``.
        width: Width of the LSTM instead of the size's.
        text: Which source code: ``linux``, ``python``, or ``auto``.
        optimizer: ``sgd``, ``adamw``, ``adamw-aged``, ``adamw-low-beta`` or ``lamb``.
        rate: Peak learning rate; None: that of the optimizer on this task.
        batch: Sequences in a step of all ranks.
        length: Bytes in a sequence.
        heldout: Held-out sequences.
        heldout_length: Bytes in a held-out sequence.

    Raises:
        TaskError: A size, text or optimizer is unknown, or the text is missing.
    """
    width = choose("size", size, WIDTHS) if width is None else width
    rates = RATES | {"adamw": RATES["adamw"] * min(1.0, WIDTHS["0.3m"] / width)}
    return Recipe(
        name="lm",
        build_model=seeded(partial(ByteLSTM, width)),
        optimizer=optimizers.choose(optimizer, rates, rate),
        optimizer_kind=optimizer,
        schedule=Schedule(ramp_steps=10, floor=0.05),
        clip_norm=1.0,
        data=load(data, text, length=length, heldout_length=heldout_length, heldout_sequences=heldout),
        global_batch=batch,
        rank_batch=RANK_BATCH,
    )


def demo(width: int = WIDTHS["1m"]) -> Recipe:
    """The recipe of the demo and of ``bench train``: the same text on every machine, and more that is held out."""
    return recipe(
        width=width,
        text="python",
        length=DEMO_LENGTH,
        heldout=DEMO_HELDOUT,
        heldout_length=DEMO_HELDOUT_LENGTH,
    )
