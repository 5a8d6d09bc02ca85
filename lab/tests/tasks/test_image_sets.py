"""Images to train on: glyphs split by font, CIFAR's binary version, digits."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

from gravac_lab.tasks import TASKS, TaskError, make
from gravac_lab.tasks.data import cifar, glyphs, image_sets, linux
from gravac_lab.tasks.data.images import Images


@pytest.fixture
def fonts(tmp_path: Path) -> Path:
    """A folder with a font of every family: DejaVu Sans to train on, DejaVu Serif held out."""
    matplotlib = pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'gravac[plots]'")
    folder = tmp_path / "fonts"
    folder.mkdir()
    for families, font in ((glyphs.TRAIN, "DejaVuSans"), (glyphs.HELDOUT, "DejaVuSerif")):
        for family in families:
            shutil.copy(
                f"{matplotlib.get_data_path()}/fonts/ttf/{font}.ttf", folder / f"{family}-Regular.ttf"
            )
    return folder


def test_glyphs_are_split_by_font(fonts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = glyphs.load(fonts, tmp_path / "cache")
    assert found.train.shape == (62 * 4 * 3, 1, 28, 28)
    assert found.heldout_images.shape == (62 * 2, 1, 28, 28)
    assert found.train_classes.bincount().tolist() == [12] * 62
    for rank in range(2):
        assert found.train_classes[rank::2].unique().numel() > 50, "each rank has nearly all letters"
    trained = {bytes(image.flatten().tolist()) for image in found.train}
    assert not trained & {bytes(image.flatten().tolist()) for image in found.heldout_images}
    capital_i, capital_w = (found.heldout_images[glyphs.CHARACTERS.index(letter)] > 127 for letter in "IW")
    assert capital_w.sum() > capital_i.sum() > 10
    assert capital_w.any(1).sum() > 2 * capital_i.any(1).sum(), "a W is wide"
    monkeypatch.setattr(glyphs, "_render", lambda fonts, sizes: pytest.fail("rendered twice"))
    assert torch.equal(glyphs.load(fonts, tmp_path / "cache").train, found.train)


def test_a_font_that_is_missing(fonts: Path, tmp_path: Path) -> None:
    (fonts / "NotoMono-Regular.ttf").unlink()
    with pytest.raises(TaskError, match=r"NotoMono.*apt-get install fonts-noto-core fonts-noto-mono"):
        glyphs.load(fonts, tmp_path / "cache")


def test_glyphs_without_matplotlib(fonts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.ft2font", None)
    with pytest.raises(TaskError, match=r"pip install 'gravac\[plots\]'"):
        glyphs.load(fonts, tmp_path / "cache")


def test_by_default_a_task_takes_what_is_installed(
    fonts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip brings scikit-learn's digits and Python's own source. Fonts and the kernel's source are extra."""
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'gravac[digits]'")
    monkeypatch.setattr(linux, "ARCHIVE", tmp_path / "missing.tar.xz")
    monkeypatch.setattr(glyphs, "FONTS", tmp_path / "missing")
    for task in TASKS:
        recipe = make(task)
        assert recipe.data.source.startswith(("standard library", "handwritten digits"))
        next(recipe.batches(0, 2, 0))
    monkeypatch.setattr(glyphs, "FONTS", fonts)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    glyphs.installed.cache_clear()
    assert "Noto fonts" in make("logistic").data.source
    assert "digits" in make("logistic:images=digits").data.source
    (fonts / "NotoMono-Regular.ttf").unlink()
    assert "digits" in make("logistic").data.source, "some fonts are another task"
    glyphs.installed.cache_clear()


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


def test_digits() -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'gravac[digits]'")
    first, second = (make("digits").on_rank(rank, 2, seed=0) for rank in range(2))
    images, classes = next(first.batches)
    assert images.shape == (32, 1, 8, 8)
    assert float(images.max()) == 1.0
    assert first.model(images).shape == (32, 10)
    assert int(classes.max()) <= 9
    assert sum(len(c) for task in (first, second) for _, c in task.heldout) == 359
    found = image_sets.digits()
    assert len(found.train) + len(found.heldout_images) == 1797


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    image_sets.digits.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(TaskError, match=r"pip install 'gravac\[digits\]'"):
        make("resnet:images=digits")


def test_shares_and_shifts() -> None:
    """Image i of the test is a dot of value i + 1: ranks have every third, held-out limits take a part."""
    dots = torch.zeros(30, 1, 9, 9, dtype=torch.uint8)
    dots[:, 0, 4, 4] = torch.arange(1, 31)
    found = Images(
        source="a test",
        train=dots,
        train_classes=torch.arange(30),
        heldout_images=dots,
        heldout_classes=torch.arange(30),
        classes=30,
        white=1.0,
        shift=2,
        heldout_limit=20,
        heldout_batch=8,
    )
    places = set()
    for images, classes in (batch for batch, _ in zip(found.batches(1, 3, 0, 16), range(300), strict=False)):
        assert set((classes % 3).tolist()) == {1}
        assert torch.equal(images.amax((1, 2, 3)).long(), classes + 1)
        places.add(tuple((images[0, 0] > 0).nonzero()[0].tolist()))
    assert places == {(row, column) for row in range(2, 7) for column in range(2, 7)}
    assert [len(classes) for _, classes in found.heldout()] == [8, 8, 4]
    shares = [classes for rank in range(2) for _, classes in found.heldout(rank, 2)]
    assert torch.cat(shares).unique().tolist() == torch.cat([c for _, c in found.heldout()]).unique().tolist()
