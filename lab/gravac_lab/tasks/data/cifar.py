"""CIFAR-10 and CIFAR-100 from a folder in their binary version. Their other version is pickled, so it is not read."""

from pathlib import Path

import torch
from torch import Tensor

from gravac_lab.tasks.data.images import Images
from gravac_lab.tasks.recipe import TaskError

PIXELS = 3 * 32 * 32
NAMES = {10: ("data_batch_*.bin", "test_batch.bin"), 100: ("train.bin", "test.bin")}
"""Files of training and test images, by the number of classes."""


def load(folder: Path) -> Images:
    """Read a folder as ``cifar-10-binary.tar.gz`` or ``cifar-100-binary.tar.gz`` unpacks.

    CIFAR-100 is read with its 100 fine classes. Training images are shifted by up to four pixels.

    Raises:
        TaskError: The files are missing or have another format.
    """
    if not folder.is_dir():
        raise TaskError(f"data={folder} is not a folder; give one that holds CIFAR's images")
    for classes, patterns in NAMES.items():
        training, heldout = (sorted(folder.glob(pattern)) for pattern in patterns)
        if training and heldout:
            (train, train_classes), (held, held_classes) = (
                _read(files, classes) for files in (training, heldout)
            )
            return Images(
                source=str(folder),
                train=train,
                train_classes=train_classes,
                heldout_images=held,
                heldout_classes=held_classes,
                classes=classes,
                shift=4,
            )
    pickled = any(folder.glob("data_batch_[0-9]")) or (folder / "train").is_file()
    raise TaskError(
        f"data={folder} must hold CIFAR's binary version, data_batch_1.bin … and test_batch.bin, or train.bin and "
        f"test.bin"
        + (
            "; this is the Python version, which is pickled and could run any code when it is read"
            if pickled
            else ""
        )
    )


def _read(files: list[Path], classes: int) -> tuple[Tensor, Tensor]:
    """Images and classes. A record is the class (CIFAR-100: the coarse one, then the fine one) and the pixels."""
    labels = 1 if classes == 10 else 2
    parts = []
    for path in files:
        content = bytearray(path.read_bytes())
        if not content or len(content) % (labels + PIXELS):
            raise TaskError(
                f"{path} has {len(content)} bytes, which is no multiple of the {labels + PIXELS} of an image; "
                "download it again"
            )
        parts.append(torch.frombuffer(content, dtype=torch.uint8).view(-1, labels + PIXELS))
    records = torch.cat(parts)
    named = records[:, labels - 1].long()
    if int(named.max()) >= classes:
        raise TaskError(
            f"{files[0].parent} has class {int(named.max())}, but CIFAR-{classes} ends at {classes - 1}"
        )
    return records[:, labels:].reshape(-1, 3, 32, 32), named
