"""What ``start`` makes, ``close`` frees; and a module that has or had an agent is copied as any other."""

import operator

import pytest

from tests.support.ranks.harness import RunEach, RunRanks

pytestmark = pytest.mark.distributed


def test_a_module_is_copied_before_during_and_after_an_agent(run_ranks: RunRanks) -> None:
    """``AveragedModel``, ``deepcopy`` and ``torch.save``. A copy has no agent."""
    one, two = run_ranks("copied", 2)
    for result in (one, two):
        assert result["equal"] == [True] * 3
        assert result["ema"]
        assert result["steps"] == [8, 8]
        assert result["kept"]
        assert result["plain"] == [True] * 3
        assert result["cf"] == 10.0
    assert one["parameters"] == two["parameters"]


def test_fifty_agents_in_one_process_leave_nothing(run_ranks: RunRanks) -> None:
    one, two = run_ranks("sweep", 2, trials=50)
    assert one["fingerprints"] == two["fingerprints"]
    for result in (one, two):
        first, counts = result["counts"][1], result["counts"]
        assert {count[2] for count in counts} == {1}
        # The first agent's reductions start torch's own threads.
        more = {trial: now for trial, now in enumerate(counts[1:]) if any(map(operator.gt, now, first))}
        assert more == {}, first
        assert not [name for name in result["threads"] if name.startswith("gravac")]


def test_a_rank_that_is_gone_or_hangs_delays_close_for_seconds_only(run_each: RunEach) -> None:
    for case, results in run_each("one_leaves", 3, [{"how": "raises"}, {"how": "hangs"}], fresh=True):
        for result in results[:2]:
            assert result["error"] == ("PeerError" if case["how"] == "raises" else ""), case
            assert result["seconds"] < 7, case
        assert results[2]["error"] == "MemoryError", case
