"""What does not grow with ranks: a rank's messages of a start, of ticks, and of a window's end."""

from math import ceil, log2

import pytest

from tests.support.ranks.harness import RunRanks

pytestmark = pytest.mark.distributed
RANKS = (6, 12)


def test_messages_of_a_start_and_of_ticks_grow_with_the_logarithm(run_ranks: RunRanks) -> None:
    """Twice the ranks take one message more of each operation. Rings would take 6 or 12 more."""
    few, many = (
        [sum(each.values()) for each in run_ranks("messages_of_a_job", world)[1].values()] for world in RANKS
    )
    operations = 12
    assert few[0] <= operations * (1 + ceil(log2(RANKS[0])))
    assert few[1] <= 4 * ceil(log2(RANKS[0]))  # ticks, and once whether all can decode
    for before, after, each in zip(few, many, (operations, 4, 3), strict=True):
        assert before < after <= before + each


@pytest.mark.parametrize("world", RANKS)
def test_messages_that_measure_the_network_grow_with_the_logarithm(run_ranks: RunRanks, world: int) -> None:
    first, *others = run_ranks("probed", world)
    assert all(other["network"] == first["network"] for other in others)
    for found in (first, *others):
        assert found["transfers"] >= 5
        assert found["messages"] == found["transfers"] * ceil(log2(world))


@pytest.mark.parametrize("world", [2, 5, 8])
def test_sums_have_the_same_bits_on_all_ranks(run_ranks: RunRanks, world: int) -> None:
    first, *others = run_ranks("doubled", world)
    assert all(other == first for other in others)
    assert first["off"] < 1e-13
    assert first["most"]
    assert first["numbers"] == [10 * rank + 1 for rank in range(world)]
    assert first["equal"]
    assert not first["unequal"]
    assert first["first"] == "of rank 0"
