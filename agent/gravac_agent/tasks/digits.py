"""Task ``digits``: a small ResNet on scikit-learn's handwritten digits (8x8 pixels, ten classes). A smoke test."""

from functools import lru_cache, partial
from pathlib import Path

import torch

from gravac_agent.tasks import optimizers
from gravac_agent.tasks.images import Images
from gravac_agent.tasks.recipe import Recipe, Schedule, TaskError, seeded
from gravac_agent.tasks.resnet import ResNet

RANK_BATCH = 32
"""Images in a batch of one rank."""
HELDOUT_EVERY = 5
WHITE = 16.0
RATES = {"sgd": 0.1, "adamw": 3e-3, "lamb": 1e-2}


def recipe(
    data: Path | None = None,
    *,
    width: int = 48,
    optimizer: str = "sgd",
    rate: float | None = None,
    batch: int = 32,
) -> Recipe:
    """Make the recipe.

    Args:
        data: Must be None.
        width: Channels of the first stage, a multiple of 8; 48 gives 0.84 M parameters.
        optimizer: ``sgd``, ``adamw`` or ``lamb``.
        rate: Peak learning rate; None: that of the optimizer on this task.
        batch: Images in a step of all ranks.

    Raises:
        TaskError: scikit-learn is missing, the optimizer is unknown, or a folder was given.
    """
    if data is not None:
        raise TaskError(f"the digits task brings its own images and cannot read {data}; take resnet or vgg")
    return Recipe(
        name="digits",
        build_model=seeded(partial(ResNet, width)),
        optimizer=optimizers.choose(optimizer, RATES, rate, weight_decay=1e-4),
        optimizer_kind=optimizer,
        schedule=Schedule(ramp_steps=10, floor=0.05),
        clip_norm=1.0,
        data=load(),
        global_batch=batch,
        rank_batch=RANK_BATCH,
    )


@lru_cache(1)
def load() -> Images:
    """Load the images: four fifths to train on, shifted by up to one pixel because they are few, one fifth held out.

    Raises:
        TaskError: scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise TaskError(
            "the digits task reads its images from scikit-learn, which is not installed: pip install 'gravac[digits]'"
        ) from None
    found = load_digits()
    images = torch.tensor(found.data, dtype=torch.uint8).reshape(-1, 1, 8, 8)
    classes = torch.tensor(found.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, classes = images[order], classes[order]
    held = torch.arange(len(images)) % HELDOUT_EVERY == HELDOUT_EVERY - 1
    return Images(
        source="handwritten digits of scikit-learn",
        train=images[~held],
        train_classes=classes[~held],
        heldout_images=images[held],
        heldout_classes=classes[held],
        classes=10,
        white=WHITE,
    )
