"""What the distributed tests rest on: ranks are processes of their own, and none outlives its test."""

import os
import time
from pathlib import Path

import pytest
from ranks.harness import RunRanks

pytestmark = pytest.mark.distributed


def test_ranks_hash_differently(run_ranks: RunRanks) -> None:
    """As started ones do: whoever sends things in the order of a set must fail here too."""
    one, two, three = run_ranks("hashed", 3)
    assert len({os.getpid(), one["parent"], two["parent"]}) == 3
    assert one["hash"] != two["hash"]
    assert two["parent"] == three["parent"]


def test_failing_and_hanging_ranks_are_told_and_ended(run_ranks: RunRanks, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"(?s)ranks hang after 1.*rank1.log.*RuntimeError: deliberate"):
        run_ranks("one_fails", 2, seconds=1)
    assert time.monotonic() - began < 30
    assert not (tmp_path / "rank0.json").exists()
    assert len(run_ranks("hashed", 2)) == 2  # and the next may run
