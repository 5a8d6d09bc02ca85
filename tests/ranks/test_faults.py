"""Faults on one rank: P10 (nothing lost, nothing poisoned) and P2 (no lone decision)."""

import math

import pytest
from ranks.harness import RunRanks

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("value", ["inf", "nan"])
@pytest.mark.parametrize(("cf", "compressor"), [(1.0, "topk"), (10.0, "topk"), (50.0, "randomk")])
@pytest.mark.parametrize("at", [0, 7])
def test_a_non_finite_gradient_on_one_rank_leaves_no_trace(
    run_ranks: RunRanks, at: int, cf: float, compressor: str, value: str
) -> None:
    results = run_ranks("nonfinite", 2, at=at, cf=cf, compressor=compressor, value=value)
    for result in results:
        assert result["every_rank_saw_it"]  # so that a GradScaler skips everywhere
        assert result["parameters_kept"]
        assert result["residual_kept"]
        assert result["finite"]
        assert result["clean"]
        assert result["counted"] == 1
        assert math.isfinite(result["loss"])
        if cf > 1 and at:
            assert result["residual_elements"] > 0
    assert results[0]["parameters"] == results[1]["parameters"]


@pytest.mark.parametrize("compressor", ["topk", "randomk"])
def test_sent_plus_owed_is_what_came_in(run_ranks: RunRanks, compressor: str) -> None:
    for result in run_ranks("conserved", 3, compressor=compressor):
        assert result["worst"] < 2e-5
        assert result["largest_owed"] > 100 * result["worst"]  # the memory really owes something
        assert result["flushed"] < 2e-6


def test_another_plan_on_one_rank_is_refused_before_its_collective(run_ranks: RunRanks) -> None:
    for result in run_ranks("disagreement", 2):
        assert "ranks disagree" in result["error"]
        assert 20.0 not in result["issued"]
        assert result["step"] == 20


def test_different_settings_are_named(run_ranks: RunRanks) -> None:
    for result in run_ranks("settings_differ", 2):
        assert "window: rank 0 has 10, rank 1 has 11" in result["error"]


def test_a_codec_that_fails_on_one_rank_costs_one_rank_one_step(run_ranks: RunRanks) -> None:
    one, two = run_ranks("failing_codec", 2)
    assert one["parameters"] == two["parameters"]
    assert two["owed"] > 0


@pytest.mark.parametrize("compressor", ["topk", "randomk"])
def test_resume_is_exact(run_ranks: RunRanks, compressor: str) -> None:
    for result in run_ranks("resumed", 2, compressor=compressor):
        assert result["resumed"] == result["whole"]
