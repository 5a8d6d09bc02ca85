"""The ranks' files of a framework's checkpoint: what is written, found, and deleted."""

from pathlib import Path

import pytest
import torch

from gravac_agent.integrations import rank_files


def state(rank: int) -> dict[str, object]:
    return {"rank": rank, "residual": {"w": torch.full((3,), float(rank))}}


def test_each_rank_writes_its_own_and_finds_it_again(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    for rank in range(2):
        rank_files.save(state(rank), folder, rank, 2)
    assert sorted(path.name for path in folder.iterdir()) == ["gravac-rank0-of-2.pt", "gravac-rank1-of-2.pt"]
    (found,) = rank_files._states(folder, 1, 2)
    loaded = torch.load(found, weights_only=True)
    assert loaded["rank"] == 1
    assert torch.equal(loaded["residual"]["w"], torch.ones(3))


def test_another_number_of_ranks_needs_all_files(tmp_path: Path) -> None:
    for rank in range(3):
        rank_files.save(state(rank), tmp_path, rank, 3)
    assert [path.name for path in rank_files._states(tmp_path, 0, 2)] == [
        f"gravac-rank{rank}-of-3.pt" for rank in range(3)
    ]
    (tmp_path / "gravac-rank1-of-3.pt").unlink()
    assert rank_files._states(tmp_path, 0, 2) == []
    assert rank_files._states(tmp_path / "missing", 0, 2) == []


def test_files_of_another_number_of_ranks_are_replaced(tmp_path: Path) -> None:
    """A checkpoint written again, with fewer ranks, would else be resumed from the old files."""
    for rank in range(3):
        rank_files.save(state(rank), tmp_path, rank, 3)
    for rank in range(2):
        rank_files.save(state(rank), tmp_path, rank, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "gravac-rank0-of-2.pt",
        "gravac-rank1-of-2.pt",
    ]


def test_ranks_delete_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "last.ckpt.gravac"
    for rank in range(2):
        rank_files.save(state(rank), folder, rank, 2)
    rank_files.remove(folder, 0)
    assert [path.name for path in folder.iterdir()] == ["gravac-rank1-of-2.pt"]
    rank_files.remove(folder, 1)
    assert not folder.exists()
    rank_files.remove(folder, 1)


def test_a_full_disk_does_not_end_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    rank_files.save(state(0), tmp_path / "file" / "checkpoint", 0, 2)
    assert "could not be saved" in caplog.text
