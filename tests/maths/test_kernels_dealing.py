"""Elements dealt out among ranks: back and forth, alike on every back end."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.kernels import deal, home
from tests.support.maths.backends import everywhere

SEEDS = st.sampled_from([0, 1, 12345, 2**31 - 1]) | st.integers(0, 2**31 - 1)


@settings(deadline=None)
@given(
    places=st.sets(st.integers(0, 5000) | st.integers(2**31 - 300, 2**31 - 1)),
    ranks=st.integers(1, 9) | st.just(1000),
    seed=SEEDS,
)
def test_there_and_back(places: set[int], ranks: int, seed: int) -> None:
    given_ = torch.tensor(sorted(places), dtype=torch.int32)
    order, counts = everywhere(lambda: deal(given_, ranks, seed))
    assert sorted(order.tolist()) == list(range(len(places)))
    assert counts.dtype == torch.int64
    assert counts.numel() == ranks
    for owner, mine in enumerate(given_[order.long()].split(counts.tolist())):
        assert mine.tolist() == sorted(mine.tolist())
        back = everywhere(lambda owner=owner, mine=mine: home(mine // ranks, owner, ranks, seed))
        assert torch.equal(back, mine)


def test_known_values() -> None:
    """The wire depends on them: a rank with another version would own other elements."""
    order, counts = everywhere(lambda: deal(torch.arange(12, dtype=torch.int32), 3, 7))
    assert (order.tolist(), counts.tolist()) == ([1, 4, 7, 11, 2, 5, 8, 9, 0, 3, 6, 10], [4, 4, 4])
