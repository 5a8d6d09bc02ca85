"""Text to train on: where it comes from, that no held-out text is trained on, and how it is cut and shared."""

import itertools
from pathlib import Path

import pytest
import torch

from gravac_lab.tasks import TaskError, make
from gravac_lab.tasks.data import text
from gravac_lab.tasks.data.text import Text, as_bytes, folder_text, python_text


def test_the_standard_library_is_split_by_file(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"m{number:02}.py").write_bytes(bytes([65 + number]) * 10_000)
    training, heldout = python_text(tmp_path)
    assert heldout.tolist() == [65 + 9] * 10_000 + [65 + 19] * 10_000
    assert not set(training.tolist()) & set(heldout.tolist())
    assert len(training) == 180_000
    assert b"import os" in bytes(python_text()[0].tolist())


def test_the_standard_library_is_capped(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"m{number:02}.py").write_bytes(b"x" * 50_000)
    training, heldout = python_text(tmp_path, max_bytes=600_000)
    assert len(training) + len(heldout) == 600_000


def test_a_python_without_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="without the source of its standard library"):
        python_text(tmp_path)


@pytest.mark.parametrize(
    ("names", "heldout"),
    [
        (("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"), "ptb.valid.txt"),
        (("wiki.train.raw", "wiki.test.raw"), "wiki.test.raw"),
    ],
)
def test_a_folder_of_text(tmp_path: Path, names: tuple[str, ...], heldout: str) -> None:
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(bytes([65 + number]) * 100_000)
    train, held = folder_text(tmp_path)
    assert set(train.tolist()) == {65}
    assert set(held.tolist()) == {65 + names.index(heldout)}
    recipe = make("gpt", tmp_path)
    assert recipe.data.source == str(tmp_path)
    assert set(next(recipe.batches(0, 1, 0))[0].flatten().tolist()) == {65}


def test_a_folder_without_the_text(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"nowhere is not a folder"):
        make("lm", tmp_path / "nowhere")
    (tmp_path / "train.txt").write_bytes(b"x" * 100_000)
    with pytest.raises(TaskError, match=r"one \*valid\*\.txt .* it holds train\.txt"):
        make("lm", tmp_path)
    (tmp_path / "valid.txt").write_bytes(b"x" * 10)
    with pytest.raises(TaskError, match="10 held out are too few"):
        make("lm", tmp_path)
    with pytest.raises(TaskError, match="two sources"):
        make("lm:text=python", tmp_path)


def counted(sequences: int) -> Text:
    """Text in which each byte tells where it is."""
    return Text(
        source="a test",
        train=torch.arange(4000) // 1000,
        heldout_text=as_bytes(bytes(range(256)) * 16),
        length=8,
        heldout_length=16,
        heldout_sequences=sequences,
    )


def test_each_rank_has_its_stretch_and_predicts_the_next_byte() -> None:
    for rank in range(4):
        inputs, targets = next(counted(1).batches(rank, 4, seed=0, batch_size=5))
        assert inputs.shape == (5, 8)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert set(inputs.flatten().tolist()) == {rank}


def test_ranks_share_all_heldout_batches() -> None:
    data = counted(100)
    alone = [inputs for inputs, _ in data.heldout()]
    shares = [[inputs for inputs, _ in data.heldout(rank, 3)] for rank in range(3)]
    mixed = [part for row in itertools.zip_longest(*shares) for part in row if part is not None]
    assert torch.equal(torch.cat(alone), torch.cat(mixed))
    assert len(torch.cat(alone)) == 100
    assert sum(len(inputs) for inputs, _ in counted(10_000).heldout()) == 4096 // 17, "no more than there are"


def test_the_source_of_all_ranks_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = make("lm:text=python,width=8").data
    monkeypatch.setattr(text, "python_text", lambda: pytest.fail("read twice"))
    assert isinstance(first, Text)
    again = make("gpt:text=python").data
    assert isinstance(again, Text)
    assert again.train is first.train
