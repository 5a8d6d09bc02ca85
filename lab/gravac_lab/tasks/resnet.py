"""Task ``resnet``: a small ResNet on images, trained by SGD with momentum.

It normalizes by group, not by batch. Statistics of a batch would be of one rank's part of it, so the model would change
with the number of ranks; and DDP sends them by itself, uncompressed, which an emulated link would not slow.
"""

from functools import partial
from pathlib import Path

from torch import Tensor, nn

from gravac_lab.tasks import optimizers
from gravac_lab.tasks.data import image_sets
from gravac_lab.tasks.recipe import Recipe, Schedule, choose, seeded

SHAPES = {"0.3m": (32, 1), "1m": (56, 1), "3m": (64, 2), "10m": (120, 2), "30m": (208, 2)}
"""Width of the first stage and blocks in a stage, by size: ResNet-8 and ResNet-14."""
RATES = {"sgd": 0.03, "adamw": 3e-3, "lamb": 1e-2}


class ResidualBlock(nn.Module):
    """A residual block of two convolutions (He et al. 2016), the activation first."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, inside), nn.ReLU(), nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        )
        self.second = nn.Sequential(
            nn.GroupNorm(8, outside), nn.ReLU(), nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        )
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x)) + self.shortcut(x)
        return out


class ResNet(nn.Module):
    """Maps images, shape ``(n, channels, height, width)``, to scores of the classes, shape ``(n, classes)``.

    Args:
        width: Channels of the first of three stages; the second has twice and the third four times as many.
        blocks: Residual blocks in a stage; 1 makes a ResNet-8, 2 a ResNet-14.
        strides: Of the first convolution and of each stage; 2 halves height and width.
        channels: Of the images.
        classes: How many there are.
    """

    def __init__(
        self,
        width: int,
        blocks: int = 1,
        strides: tuple[int, int, int, int] = (1, 1, 2, 2),
        channels: int = 1,
        classes: int = 10,
    ) -> None:
        super().__init__()
        first, *others = strides
        widths = [(width, width), (width, 2 * width), (2 * width, 4 * width)]
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, first, 1, bias=False),
            *(
                ResidualBlock(outside if again else inside, outside, 1 if again else stride)
                for (inside, outside), stride in zip(widths, others, strict=True)
                for again in range(blocks)
            ),
            nn.GroupNorm(8, 4 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.scores = nn.Linear(4 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.body(images))
        return scores


def recipe(
    data: Path | None = None,
    *,
    size: str = "0.3m",
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
    width, blocks = choose("size", size, SHAPES)
    found = image_sets.load(data, images, heldout)
    net = partial(ResNet, width, blocks, (2, 2, 2, 2), channels=found.train.shape[1], classes=found.classes)
    return Recipe(
        name="resnet",
        build_model=seeded(net),
        optimizer=optimizers.choose(optimizer, RATES, rate, weight_decay=5e-4),
        optimizer_kind=optimizer,
        schedule=Schedule(ramp_steps=20, floor=0.0),
        clip_norm=None,
        data=found,
        global_batch=batch,
        rank_batch=batch,
    )
