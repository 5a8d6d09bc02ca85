"""Images to train on: glyphs split by font, CIFAR's binary version, digits."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

from gravac_lab.tasks import TASKS, TaskError, make
from gravac_lab.tasks.data import glyphs, image_sets, linux


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
