"""Optimizers that run backward inside their step: ``Agent.finish_backward`` does what the hooks before a step do."""

import pytest

from tests.support.ranks.harness import RunRanks

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("policy", ["dense", "static:cf=10"])
def test_a_closure_trains_as_without_one(run_ranks: RunRanks, policy: str) -> None:
    """A step that is not skipped in time, or that is counted twice, ends in other parameters."""
    one, two = run_ranks("closures", ends_backward=True, policy=policy)
    assert one == two
    assert one["closure"] == one["plain"]
    assert one["closure"]["finite"]
    assert one["closure"]["progress"]
    assert one["closure"]["nonfinite"] == 1


def test_without_it_the_step_is_not_skipped(run_ranks: RunRanks) -> None:
    """The test above can fail: hooks before the optimizer's step come before its backward."""
    one, _ = run_ranks("closures", ends_backward=False, policy="dense")
    assert not one["closure"]["finite"]
    assert not one["closure"]["progress"]
    assert one["plain"]["finite"]
