"""Images as training data, shifted at random in training."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gravac_lab.tasks.recipe import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Training and held-out images with their classes.

    Attributes:
        source: Where the images come from, in words.
        train: Training images, uint8 of shape (n, channels, height, width). A rank has every ``world_size``-th.
        train_classes: Their classes, int64 of shape (n,).
        heldout_images: Held-out images.
        heldout_classes: Their classes.
        classes: How many classes there are.
        white: Value of a white pixel; images are divided by it.
        shift: Most pixels that training images are shifted, to either side, up and down; all of a batch alike.
        heldout_limit: Most held-out images that are used, a random choice that is always the same; None: all, in order.
        heldout_batch: Images in a held-out batch.
    """

    source: str
    train: Tensor
    train_classes: Tensor
    heldout_images: Tensor
    heldout_classes: Tensor
    classes: int
    white: float = 255.0
    shift: int = 1
    heldout_limit: int | None = None
    heldout_batch: int = 64

    def batches(self, rank: int, world_size: int, seed: int, batch_size: int) -> Iterator[Batch]:
        """Yield random images of this rank's share, without end."""
        share = slice(rank, None, world_size)
        images, classes = self.train[share], self.train_classes[share]
        generator = torch.Generator().manual_seed(seed * 1000 + rank)
        while True:
            chosen = torch.randint(len(images), (batch_size,), generator=generator)
            right, down = torch.randint(-self.shift, self.shift + 1, (2,), generator=generator).tolist()
            yield (images[chosen] / self.white).roll((right, down), (-1, -2)), classes[chosen]

    def heldout(self, rank: int = 0, world_size: int = 1) -> list[Batch]:
        """Return every ``world_size``-th held-out batch, from the ``rank``-th on."""
        images, classes = self.heldout_images, self.heldout_classes
        if self.heldout_limit is not None:
            chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[
                : self.heldout_limit
            ]
            images, classes = images[chosen], classes[chosen]
        batches = zip(
            (images / self.white).split(self.heldout_batch), classes.split(self.heldout_batch), strict=True
        )
        return list(batches)[rank::world_size]
