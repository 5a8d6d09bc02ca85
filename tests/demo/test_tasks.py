"""The demo's tasks: real data, a clean split, and the same on every rank where it must be."""

import itertools
import sys
from pathlib import Path

import pytest
import torch
from gravac_agent.demo.task import TaskError, rate_share

from gravac_agent.demo import digits, lm, train


def test_corpus_is_the_standard_library_split_by_file(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"m{number:02}.py").write_bytes(bytes([65 + number]) * 10_000)
    training, heldout = lm.split_text(tmp_path)
    assert heldout.tolist() == [65 + 9] * 10_000 + [65 + 19] * 10_000
    assert not set(training.tolist()) & set(heldout.tolist())
    assert len(training) == 180_000
    assert b"import os" in bytes(lm.split_text()[0].tolist())
    assert all(torch.equal(a, b) for a, b in zip(lm.split_text(), lm.split_text(), strict=True))


def test_corpus_is_capped(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"m{number:02}.py").write_bytes(b"x" * 50_000)
    training, heldout = lm.split_text(tmp_path, max_bytes=600_000)
    assert len(training) + len(heldout) == 600_000


def test_a_python_without_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="without the source of its standard library"):
        lm.split_text(tmp_path)


def test_ranks_share_the_model_and_not_the_data() -> None:
    first, second = (lm.build(rank, 2, seed=3) for rank in range(2))
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    mine, yours = next(first.batches), next(second.batches)
    assert mine[0].shape == (lm.BATCH, lm.LENGTH)
    assert torch.equal(mine[0][:, 1:], mine[1][:, :-1]), "the target is the next byte"
    assert not torch.equal(mine[0], yours[0])
    again = lm.build(0, 2, seed=3)
    assert torch.equal(next(again.batches)[0], mine[0])
    assert not torch.equal(next(lm.build(0, 2, seed=4).batches)[0], mine[0])


def test_ranks_share_all_heldout_batches() -> None:
    alone = [inputs for inputs, _ in lm.build(0, 1, seed=0).heldout]
    shares = [[inputs for inputs, _ in lm.build(rank, 3, seed=0).heldout] for rank in range(3)]
    mixed = [part for row in itertools.zip_longest(*shares) for part in row if part is not None]
    assert torch.equal(torch.cat(alone), torch.cat(mixed))
    assert len(torch.cat(alone)) == lm.HELDOUT_SEQUENCES


def test_the_gradient_is_worth_compressing() -> None:
    """The documents say 4.2 MB a step."""
    elements = sum(parameter.numel() for parameter in lm.ByteLSTM().parameters())
    assert 3e6 < 4 * elements < 5e6


def test_the_learning_rate_rises_then_falls() -> None:
    rates = [rate_share(step, 100, 10) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9]
    assert rates[100] == pytest.approx(0.05)
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[9:]))


def test_digits() -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'gravac[digits]'")
    first, second = (digits.build(rank, 2, seed=0) for rank in range(2))
    images, classes = next(first.batches)
    assert images.shape == (digits.BATCH, 1, 8, 8)
    assert first.model(images).shape == (digits.BATCH, 10)
    assert int(classes.max()) <= 9
    assert sum(len(c) for task in (first, second) for _, c in task.heldout) == 359
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(TaskError, match=r"pip install 'gravac\[digits\]'"):
        digits.build(0, 1, 0)


def test_a_rank_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "argv", ["demo"])
    with pytest.raises(SystemExit, match="torchrun"):
        train.main()
