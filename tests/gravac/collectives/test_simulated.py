"""The simulated world ends when a rank fails."""

from typing import Any

import pytest
import torch

from gravac.collectives.simulated import SimulatedWorld


def test_the_simulated_world_ends_when_a_rank_fails() -> None:
    def each(communicator: Any) -> None:
        if communicator.rank == 1:
            raise RuntimeError("rank 1 is gone")
        communicator.sum(torch.ones(1))

    with pytest.raises(RuntimeError, match="rank 1 is gone"):
        SimulatedWorld(3).run(each)
    with pytest.raises(ValueError, match="size=0 must be at least 1 rank"):
        SimulatedWorld(0)
