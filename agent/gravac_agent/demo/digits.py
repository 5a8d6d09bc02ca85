"""Task ``digits``: a small ResNet on scikit-learn's handwritten digits (8x8 pixels, ten classes).

It normalizes by group, not by batch: DDP sends batch statistics by itself, and an emulated link would not slow them.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from gravac_agent.demo.task import Batch, Task, TaskError

BATCH = 32
"""Images in a batch of one rank."""
HELDOUT_EVERY = 5


class Block(nn.Module):
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


class SmallResNet(nn.Module):
    """Maps images, shape ``(n, 1, 8, 8)``, to scores of the ten digits, shape ``(n, 10)``."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, 1, 1, bias=False),
            Block(width, width, 1),
            Block(width, 2 * width, 2),
            Block(2 * width, 4 * width, 2),
            nn.GroupNorm(8, 4 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.scores = nn.Linear(4 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.body(images))
        return scores


def build(rank: int, world_size: int, seed: int) -> Task:
    """Make the task on one rank. Raises TaskError when scikit-learn is missing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise TaskError(
            "the digits task reads its images from scikit-learn, which is not installed: pip install 'gravac[digits]'"
        ) from None
    found = load_digits()
    images = torch.tensor(found.data, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    classes = torch.tensor(found.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, classes = images[order], classes[order]
    held = torch.arange(len(images)) % HELDOUT_EVERY == HELDOUT_EVERY - 1
    torch.manual_seed(seed)
    model = SmallResNet()
    share = slice(rank, None, world_size)
    heldout = list(zip(images[held].split(64), classes[held].split(64), strict=True))
    return Task(
        name="digits",
        model=model,
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-4),
        batches=_draw(images[~held][share], classes[~held][share], seed * 1000 + rank),
        heldout=heldout[rank::world_size],
        clip_norm=1.0,
        ramp_steps=10,
        bucket_mb=1.0,
    )


def _draw(images: Tensor, classes: Tensor, seed: int) -> Iterator[Batch]:
    """Yield random batches without end, shifted by up to one pixel, because 720 images a rank are few."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(images), (BATCH,), generator=generator)
        right, down = torch.randint(-1, 2, (2,), generator=generator).tolist()
        yield images[chosen].roll((right, down), (-1, -2)), classes[chosen]
