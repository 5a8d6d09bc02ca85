"""Optimizers other than torch's own, and other optimizers than the one that the agent was given."""

import pytest

from tests.support.ranks.harness import RunEach

pytestmark = pytest.mark.distributed


def test_no_step_of_a_users_optimizer_runs_on_made_up_data(run_each: RunEach) -> None:
    """The trial of a second optimizer made the ranks of a distributed Muon wait for each other, and drew numbers."""
    for case, (one, two) in run_each("own_optimizers", 2, [{"kind": "muon"}, {"kind": "rounds"}], seconds=60):
        assert one == two, case
        assert one["dense"] == one["plain"], case
        assert one["compressed"]["parameters"] != one["plain"]["parameters"], case
        assert one["compressed"]["loss"] == pytest.approx(one["plain"]["loss"], rel=0.01), case
