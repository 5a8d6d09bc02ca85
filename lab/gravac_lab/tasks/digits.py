"""Task ``digits``: a small ResNet on scikit-learn's handwritten digits (8x8 pixels, ten classes). A smoke test."""

from functools import partial
from pathlib import Path

from gravac_lab.tasks import optimizers
from gravac_lab.tasks.data import image_sets
from gravac_lab.tasks.recipe import Recipe, Schedule, TaskError, seeded
from gravac_lab.tasks.resnet import ResNet

RANK_BATCH = 32
"""Images in a batch of one rank."""
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
        optimizer: ``sgd``, ``adamw``, ``adamw-aged``, ``adamw-low-beta`` or ``lamb``.
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
        data=image_sets.digits(),
        global_batch=batch,
        rank_batch=RANK_BATCH,
    )
