"""Under DDP the residual costs one copy of the gradient, and steps that do not count are undone all the same."""

import pytest

from tests.support.ranks.harness import RunEach, RunRanks

pytestmark = pytest.mark.distributed


def test_a_step_holds_one_copy_of_the_gradient(run_ranks: RunRanks) -> None:
    """The memory and what waits for the tick, against every tensor of the process that is not the trainer's."""
    for result in run_ranks("held_by_memory", 2, compressor="topk+bf16", cf=100.0):
        assert result["buckets"] >= 10
        assert result["reported"] == pytest.approx(1.0)
        assert 1.0 <= result["between"] <= 1.05
        assert 1.0 <= result["middle"] <= 1.1  # with the payloads of all ranks


def test_a_codec_that_keeps_what_it_sent_works_with_a_draft(run_ranks: RunRanks) -> None:
    """Its transfers would take the second copy until the end of the step, and waiting would gain nothing."""
    for result in run_ranks("held_by_memory", 2, compressor="powersgd:rank=2", cf=10.0):
        assert result["reported"] == pytest.approx(2.0)


def test_steps_that_must_not_stay(run_each: RunEach) -> None:
    cases = [{"how": how} for how in ("exception", "none", "zeros")]
    for case, results in run_each("undone", 2, cases):
        for result in results:
            if case["how"] == "exception":
                assert result["residuals"] > 10
                assert result["off"] < 1e-6, "the state is that of the last finished step"
                continue
            assert result["exact"] == [True] * 3, "from the second time on, by a draft"
            assert result["growth"] == pytest.approx(2.0)
        assert results[0].get("parameters") == results[1].get("parameters")
