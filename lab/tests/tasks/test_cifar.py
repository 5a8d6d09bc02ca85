"""CIFAR's binary version."""

from pathlib import Path

import pytest
import torch

from gravac_lab.tasks import TaskError, make
from gravac_lab.tasks.data import cifar


@pytest.mark.parametrize(("classes", "files"), [(10, cifar.NAMES[10]), (100, cifar.NAMES[100])])
def test_cifar(tmp_path: Path, classes: int, files: tuple[str, str]) -> None:
    """The image of class c has pixels c, c + 1 and c + 2 in its three channels."""

    def record(fine: int) -> bytes:
        head = bytes([fine]) if classes == 10 else bytes([fine // 5, fine])
        return head + b"".join(bytes([fine + channel]) * 1024 for channel in range(3))

    for number in (1, 2) if classes == 10 else (1,):
        (tmp_path / files[0].replace("*", str(number))).write_bytes(b"".join(map(record, range(classes - 1))))
    (tmp_path / files[1]).write_bytes(record(classes - 1) * 3)
    found = cifar.load(tmp_path)
    assert found.classes == classes
    assert found.train.shape == ((2 if classes == 10 else 1) * (classes - 1), 3, 32, 32)
    assert found.heldout_classes.tolist() == [classes - 1] * 3
    for channel in range(3):
        assert torch.equal(found.train[:, channel, 0, 0].long(), found.train_classes + channel)
    recipe = make("vgg", tmp_path)
    assert recipe.build_model(0)(next(recipe.batches(0, 1, 0))[0]).shape == (32, classes)


def test_a_folder_that_is_not_cifars_binary_version(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="nowhere is not a folder"):
        make("resnet", tmp_path / "nowhere")
    (tmp_path / "data_batch_1").touch()
    with pytest.raises(TaskError, match=r"binary version.*this is the Python version, which is pickled"):
        make("resnet", tmp_path)
    (tmp_path / "train.bin").write_bytes(b"x" * 100)
    (tmp_path / "test.bin").write_bytes(b"x" * 3074)
    with pytest.raises(TaskError, match=r"train\.bin has 100 bytes.*3074"):
        make("resnet", tmp_path)
    (tmp_path / "train.bin").write_bytes(b"x" * 3074)
    with pytest.raises(TaskError, match="class 120, but CIFAR-100 ends at 99"):
        make("resnet", tmp_path)
    with pytest.raises(TaskError, match="two sources"):
        make("resnet:images=digits", tmp_path)
    with pytest.raises(TaskError, match="brings its own images"):
        make("digits", tmp_path)
