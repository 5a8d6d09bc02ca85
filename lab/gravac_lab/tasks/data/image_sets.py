"""Images by name or from a folder, for the tasks on images."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from gravac_lab.tasks.data import cifar, glyphs
from gravac_lab.tasks.data.images import Images
from gravac_lab.tasks.recipe import TaskError, choose

HELDOUT_EVERY = 5
"""Every fifth of scikit-learn's digits is held out."""
WHITE = 16.0
"""Value of a white pixel of these digits."""


def load(data: Path | None, images: str, heldout: int) -> Images:
    """Load images.

    Args:
        data: Folder with CIFAR's binary version; None: see ``images``.
        images: ``glyphs`` or ``digits``; ``auto`` is glyphs where fonts and matplotlib are installed, else digits.
        heldout: Most held-out images.

    Raises:
        TaskError: The images are unknown or missing.
    """
    sets: dict[str, Callable[[], Images]] = {
        "auto": _installed,
        "glyphs": glyphs.installed,
        "digits": digits,
    }
    found = choose("images", images, sets)
    if data is not None and images != "auto":
        raise TaskError(f"images={images!r} and the folder {data} are two sources; give one of them")
    return replace(found() if data is None else _folder(data.resolve()), heldout_limit=heldout)


def _installed() -> Images:
    return glyphs.installed() if glyphs.are_installed() else digits()


@lru_cache(1)
def digits() -> Images:
    """Load scikit-learn's handwritten digits: four fifths to train on and one fifth held out.

    Training images are shifted by up to one pixel, because they are few.

    Raises:
        TaskError: scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise TaskError(
            "the digits are read from scikit-learn, which is not installed: pip install 'gravac[digits]'"
        ) from None
    found = load_digits()
    images = torch.tensor(found.data, dtype=torch.uint8).reshape(-1, 1, 8, 8)
    classes = torch.tensor(found.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, classes = images[order], classes[order]
    held = torch.arange(len(images), dtype=torch.int64) % HELDOUT_EVERY == HELDOUT_EVERY - 1
    return Images(
        source="handwritten digits of scikit-learn",
        train=images[~held],
        train_classes=classes[~held],
        heldout_images=images[held],
        heldout_classes=classes[held],
        classes=10,
        white=WHITE,
    )


@lru_cache(1)
def _folder(folder: Path) -> Images:
    return cifar.load(folder)
