"""A gather and an all-to-all over gloo, which consist of messages between pairs of few ranks."""

import pytest

from tests.support.ranks.harness import RunRanks

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("world", [2, 3, 9])
def test_each_part_arrives_once_however_often_somebody_waits(run_ranks: RunRanks, world: int) -> None:
    for rank, found in enumerate(run_ranks("received", world)):
        for number in range(2):
            every = [100 * number + one for one in range(world) for _ in range(3)]
            assert found["gathered"][number] == every
            mine = [100 * number + 10 * one + rank for one in range(world) for _ in range(3)]
            assert found["exchanged"][number] == mine
