"""No thread of an agent outlives it: one that drops process groups while the interpreter ends aborts the process."""

import threading
from pathlib import Path
from typing import Any

import pytest

from gravac_agent import Agent
from tests.support.small_model import pair, step


@pytest.mark.parametrize("steps", [0, 3])
def test_where_no_controller_ever_answers(world_of_one: None, tmp_path: Path, steps: int) -> None:
    """A file where the folder of journals should be, so that nobody can write there, root neither."""
    (tmp_path / "file").touch()
    options: dict[str, Any] = {"data_dir": tmp_path / "file/runs", "controller": "auto"}
    module, optimizer = pair()
    before = set(threading.enumerate())  # a controller of another test may still end
    with Agent(module, optimizer, **options):
        for _ in range(steps):
            step(module, optimizer)
    after = set(threading.enumerate()) - before
    assert not [thread.name for thread in after if thread.name.startswith("gravac")]
