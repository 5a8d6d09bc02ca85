"""Task ``gpt``: a small transformer that predicts the next byte of a text, trained by AdamW."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from gravac_lab.tasks import optimizers
from gravac_lab.tasks.data.text import load
from gravac_lab.tasks.recipe import Recipe, Schedule, choose, seeded

SHAPES = {
    "0.3m": (80, 4, 4),
    "0.5m": (96, 4, 4),
    "1m": (128, 5, 4),
    "3m": (256, 4, 4),
    "10m": (384, 6, 6),
    "30m": (512, 10, 8),
}
"""Width, layers and heads by size."""
LENGTHS = {"0.3m": 32, "0.5m": 32, "1m": 32, "3m": 64, "10m": 128, "30m": 128}
"""Bytes in a sequence by size."""
RATES = {"sgd": 0.5, "adamw": 4e-3, "lamb": 2e-2}
"""Peak learning rates. AdamW's is that of width 96; wider models have less, in proportion."""


class Layer(nn.Module):
    """Attention, then two linear layers, each on normalized input and added to it (pre-norm)."""

    def __init__(self, width: int, heads: int, *, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        mixed = self.queries_keys_values(self.attention_norm(x)).view(n, length, 3 * self.heads, -1)
        queries, keys, values = mixed.transpose(1, 2).chunk(3, 1)
        attended = scaled_dot_product_attention(queries, keys, values, is_causal=self.causal)
        x = x + self.attended(attended.transpose(1, 2).reshape(n, length, width))
        out: Tensor = x + self.outer(gelu(self.inner(self.norm(x))))
        return out


def start(model: nn.Module, layers: int) -> None:
    """Draw the weights, normal, with a deviation of one over the root of the inputs, less where a result is added.

    In a few hundred steps a small model learns more from these than from GPT-2's deviation of 0.02.
    """
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() == 2:
            added = name.endswith(("attended.weight", "outer.weight"))
            nn.init.normal_(parameter, std=(parameter.shape[1] * (2 * layers if added else 1)) ** -0.5)


class ByteGPT(nn.Module):
    """Maps bytes, shape ``(n, length)``, to scores of the next byte, shape ``(n, length, 256)``."""

    def __init__(self, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.position = nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, 256)
        start(self, layers)
        nn.init.normal_(self.embedding.weight, std=0.5)
        nn.init.normal_(self.position.weight, std=0.1)
        nn.init.normal_(self.scores.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1], device=text.device, dtype=torch.int64)
        hidden = self.layers(self.embedding(text) + self.position(places))
        scores: Tensor = self.scores(self.norm(hidden))
        return scores


def recipe(
    data: Path | None = None,
    *,
    size: str = "0.5m",
    text: str = "auto",
    optimizer: str = "adamw",
    rate: float | None = None,
    beta2: float = optimizers.BETAS[1],
    batch: int = 16,
    heldout: int = 96,
    buckets: float = 1.0,
) -> Recipe:
    """Make the recipe.

    Args:
        data: Folder of text files; None: source code.
        size: Number of parameters, a key of ``SHAPES``.
        text: Which source code: ``linux``, ``python``, or ``auto``.
        optimizer: ``adamw``, ``adamw-aged``, ``adamw-low-beta``, ``muon`` (for the layers' matrices, with AdamW for the
            rest), ``sgd`` or ``lamb``.
        rate: Peak learning rate; None: that of the optimizer on this task.
        beta2: Decay of AdamW's second moment, per step.
        batch: Sequences in a step of all ranks.
        heldout: Held-out sequences, as long as those in training.
        buckets: Size of DDP's buckets, in MB. DDP's own default is 25.

    Raises:
        TaskError: A size, text or optimizer is unknown, or the text is missing.
    """
    width, layers, heads = choose("size", size, SHAPES)
    length = LENGTHS[size]
    rates = RATES | {"adamw": RATES["adamw"] * min(1.0, 96 / width)}
    with torch.device("meta"):
        named = ByteGPT(width, layers, heads, length).named_parameters()
    hidden = [name.startswith("layers.") and one.dim() == 2 for name, one in named]
    return Recipe(
        name="gpt",
        build_model=seeded(partial(ByteGPT, width, layers, heads, length)),
        optimizer=optimizers.choose(optimizer, rates, rate, hidden=hidden, beta2=beta2),
        optimizer_kind=optimizer,
        schedule=Schedule(ramp_steps=20, floor=0.1),
        clip_norm=1.0,
        data=load(data, text, length=length, heldout_length=length, heldout_sequences=heldout),
        global_batch=batch,
        rank_batch=batch,
        bucket_mb=buckets,
    )
