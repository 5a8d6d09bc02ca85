"""Task ``vgg``: three convolutions and a wide linear layer that holds most parameters, trained by SGD with momentum."""

from functools import partial
from pathlib import Path

from torch import Tensor, nn

from gravac_lab.tasks import optimizers
from gravac_lab.tasks.data import image_sets
from gravac_lab.tasks.recipe import Recipe, Schedule, choose, seeded

SHAPES = {"0.5m": (16, 256), "3m": (32, 768), "10m": (48, 1920), "30m": (64, 4096)}
"""Channels of the first convolution and width of the linear layer, by size."""
PLACES = 7
"""Height and width of what the linear layer gets; 28 pixels halved twice."""
RATES = {"sgd": 0.1, "adamw": 2e-3, "lamb": 1e-2}


class VGG(nn.Module):
    """Maps images, shape ``(n, channels, height, width)``, to scores of the classes, shape ``(n, classes)``.

    A small relative of VGG (Simonyan and Zisserman 2015), whose weights begin as in He et al. (2015). Images of less
    than 28 pixels are enlarged after the convolutions, larger ones are averaged.

    Args:
        width: Channels of the first convolution; the other two have twice as many.
        hidden: Width of the linear layer.
        channels: Of the images.
        classes: How many there are.
    """

    def __init__(self, width: int, hidden: int, channels: int = 1, classes: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(PLACES),
            nn.Flatten(),
        )
        self.hidden = nn.Linear(2 * width * PLACES**2, hidden)
        self.scores = nn.Linear(hidden, classes)
        for layer in (*self.body, self.hidden):
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.hidden(self.body(images)).relu())
        return scores


def recipe(
    data: Path | None = None,
    *,
    size: str = "0.5m",
    images: str = "auto",
    optimizer: str = "sgd",
    rate: float | None = None,
    batch: int = 32,
    heldout: int = 512,
) -> Recipe:
    """Make the recipe.

    Args:
        data: Folder with CIFAR's binary version; None: see ``images``.
        size: Number of parameters, a key of ``SHAPES``.
        images: ``glyphs`` rendered from fonts, ``digits`` of scikit-learn, ``auto``: what is installed.
        optimizer: ``sgd``, ``adamw``, ``adamw-aged``, ``adamw-low-beta`` or ``lamb``.
        rate: Peak learning rate; None: that of the optimizer on this task.
        batch: Images in a step of all ranks.
        heldout: Most held-out images.

    Raises:
        TaskError: A size, optimizer or kind of images is unknown, or the images are missing.
    """
    width, hidden = choose("size", size, SHAPES)
    found = image_sets.load(data, images, heldout)
    return Recipe(
        name="vgg",
        build_model=seeded(partial(VGG, width, hidden, channels=found.train.shape[1], classes=found.classes)),
        optimizer=optimizers.choose(optimizer, RATES, rate, weight_decay=5e-4),
        optimizer_kind=optimizer,
        schedule=Schedule(ramp_steps=20, floor=0.0),
        clip_norm=1.0,
        data=found,
        global_batch=batch,
        rank_batch=batch,
    )
