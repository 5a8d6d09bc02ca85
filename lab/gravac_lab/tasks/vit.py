"""Task ``vit``: a vision transformer on images, trained by AdamW."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from gravac_lab.tasks import optimizers
from gravac_lab.tasks.data import image_sets
from gravac_lab.tasks.gpt import Layer, start
from gravac_lab.tasks.recipe import Recipe, Schedule, choose, seeded

SHAPES = {"0.5m": (96, 4, 4), "10m": (384, 6, 6)}
"""Width, layers and heads by size."""
GRID = 4
"""Patches in a row of an image, and in a column."""
RATES = {"sgd": 0.03, "adamw": 2e-3}
"""Peak learning rates. AdamW's is that of width 96; wider models have less, in proportion."""


class ViT(nn.Module):
    """Maps images, shape ``(n, channels, height, width)``, to scores of the classes, shape ``(n, classes)``.

    Patches attend to one another (Dosovitskiy et al. 2021), and the mean over them is scored.
    """

    def __init__(self, width: int, layers: int, heads: int, channels: int, pixels: int, classes: int) -> None:
        super().__init__()
        self.patch = -(-pixels // GRID)
        self.pad = (self.patch * GRID - pixels + 1) // 2
        self.embedding = nn.Linear(channels * self.patch * self.patch, width)
        self.position = nn.Parameter(torch.zeros(GRID * GRID, width, dtype=torch.float32))
        self.layers = nn.Sequential(*(Layer(width, heads, causal=False) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, classes)
        start(self, layers)
        nn.init.normal_(self.position, std=0.5)
        nn.init.normal_(self.scores.weight, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        patches = unfold(images, self.patch, stride=self.patch, padding=self.pad).transpose(1, 2)
        hidden = self.layers(self.embedding(patches[:, : GRID * GRID]) + self.position)
        scores: Tensor = self.scores(self.norm(hidden).mean(1))
        return scores


def recipe(
    data: Path | None = None,
    *,
    size: str = "0.5m",
    images: str = "auto",
    optimizer: str = "adamw",
    rate: float | None = None,
    beta2: float = optimizers.BETAS[1],
    batch: int = 32,
    heldout: int = 512,
) -> Recipe:
    """Make the recipe.

    Args:
        data: Folder with CIFAR's binary version; None: see ``images``.
        size: Number of parameters, a key of ``SHAPES``.
        images: ``glyphs`` rendered from fonts, ``digits`` of scikit-learn, ``auto``: what is installed.
        optimizer: ``sgd``, ``adamw``, ``adamw-aged`` or ``adamw-low-beta``.
        rate: Peak learning rate; None: that of the optimizer on this task.
        beta2: Decay of AdamW's second moment, per step.
        batch: Images in a step of all ranks.
        heldout: Most held-out images.

    Raises:
        TaskError: A size, optimizer or kind of images is unknown, or the images are missing.
    """
    width, layers, heads = choose("size", size, SHAPES)
    found = image_sets.load(data, images, heldout)
    _, channels, pixels, _ = found.train.shape
    rates = RATES | {"adamw": RATES["adamw"] * 96 / width}
    return Recipe(
        name="vit",
        build_model=seeded(partial(ViT, width, layers, heads, channels, pixels, found.classes)),
        optimizer=optimizers.choose(optimizer, rates, rate, beta2=beta2),
        optimizer_kind=optimizer,
        schedule=Schedule(ramp_steps=20, floor=0.1),
        clip_norm=1.0,
        data=found,
        global_batch=batch,
        rank_batch=batch,
    )
