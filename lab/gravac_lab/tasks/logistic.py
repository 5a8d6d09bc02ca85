"""Task ``logistic``: multinomial logistic regression on images, trained by SGD without momentum.

With weight decay the loss is strongly convex, as the theory of error feedback assumes.
"""

from functools import partial
from pathlib import Path

from torch import nn

from gravac_lab.tasks import optimizers
from gravac_lab.tasks.data import image_sets
from gravac_lab.tasks.recipe import Recipe, Schedule, seeded

WEIGHT_DECAY = 1e-4
RATES = {"sgd": 4.8, "adamw": 4e-2, "lamb": 3e-2}


def recipe(
    data: Path | None = None,
    *,
    images: str = "auto",
    optimizer: str = "sgd",
    rate: float | None = None,
    batch: int = 64,
    heldout: int = 512,
) -> Recipe:
    """Make the recipe.

    Args:
        data: Folder with CIFAR's binary version; None: see ``images``.
        images: ``glyphs`` rendered from fonts, ``digits`` of scikit-learn, ``auto``: what is installed.
        optimizer: ``sgd``, ``adamw``, ``adamw-aged``, ``adamw-low-beta`` or ``lamb``.
        rate: Peak learning rate; None: that of the optimizer on this task.
        batch: Images in a step of all ranks.
        heldout: Most held-out images.

    Raises:
        TaskError: An optimizer or kind of images is unknown, or the images are missing.
    """
    found = image_sets.load(data, images, heldout)
    return Recipe(
        name="logistic",
        build_model=seeded(partial(_model, found.train[0].numel(), found.classes)),
        optimizer=optimizers.choose(optimizer, RATES, rate, weight_decay=WEIGHT_DECAY, momentum=0.0),
        optimizer_kind=optimizer,
        schedule=Schedule(ramp_steps=1, floor=0.0),
        clip_norm=None,
        data=found,
        global_batch=batch,
        rank_batch=batch,
    )


def _model(pixels: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, classes))
