"""Faults on one rank: nothing is lost or made non-finite (P10), and no rank decides alone (P2)."""

import math

import pytest

from tests.support.ranks.harness import RunEach, RunRanks

pytestmark = pytest.mark.distributed


NONFINITE = [
    {"value": value, "cf": cf, "compressor": compressor, "at": at}
    for value in ("inf", "nan")
    for cf, compressor in ((1.0, "topk"), (10.0, "topk"), (50.0, "randomk"))
    for at in (0, 7)
]


def test_a_non_finite_gradient_on_one_rank_leaves_no_trace(run_each: RunEach) -> None:
    for case, results in run_each("nonfinite", 2, NONFINITE):
        for result in results:
            assert result["every_rank_saw_it"], case  # so that a GradScaler skips everywhere
            assert result["parameters_kept"], case
            assert result["residual_kept"], case
            assert result["finite"], case
            assert result["clean"], case
            assert result["counted"] == 1, case
            assert math.isfinite(result["loss"]), case
            if case["cf"] > 1 and case["at"]:
                assert result["residual_elements"] > 0, case
        assert results[0]["parameters"] == results[1]["parameters"], case


def test_sent_plus_residual_is_the_gradient(run_each: RunEach) -> None:
    """Where the script clips the mean, exactly the clipped part is missing. No later step brings it back."""
    cases: list[dict[str, object]] = [{"compressor": name} for name in ("topk", "randomk", "blockrandomk")]
    cases.append({"compressor": "topk", "clip": 0.05})
    for case, results in run_each("conserved", 3, cases):
        for result in results:
            assert (result["lost"] > 1000 * result["worst"]) == ("clip" in case), case
            assert_conserved(result, case)


@pytest.mark.parametrize("world", [2, 4])
def test_what_owners_hold_and_sent_is_the_gradient(run_each: RunEach, world: int) -> None:
    """After each step, also of those that do not count, and of one in which an owner's codec fails."""
    cases = [
        {"collective": "owners", "compressor": name, "bad_steps": (7, 8, 21), "failing_step": 14}
        for name in ("topk", "topk+bf16", "topk+twobit")
    ]
    for case, results in run_each("conserved", world, cases):
        for result in results:
            assert_conserved(result, case)


def assert_conserved(result: dict[str, float], case: dict[str, object]) -> None:
    assert result["worst"] < 2e-5, case
    assert result["largest_residual"] > 100 * result["worst"], case  # there really is a residual
    assert result["flushed"] < 2e-6, case


def test_another_plan_on_one_rank_is_refused_before_its_collective(run_ranks: RunRanks) -> None:
    for result in run_ranks("disagreement", 2):
        assert "ranks disagree" in result["error"]
        assert 20.0 not in result["issued"]
        assert result["step"] == 20


def test_different_settings_are_named(run_ranks: RunRanks) -> None:
    """The message has what the user set, and not the codecs that follow from it."""
    for window, *policies, kind in run_ranks("settings_differ", 2):
        assert "kind of optimizer: rank 0 has 'adam-aged', rank 1 has 'adam-low-beta'" in kind
        assert "window: rank 0 has 10, rank 1 has 11" in window
        assert len(policies) == 2
        for text in policies:
            assert "settings, but policy: rank 0 has" in text
            assert "codecs" not in text


def test_a_codec_that_fails_on_one_rank_costs_one_rank_one_step(run_ranks: RunRanks) -> None:
    one, two = run_ranks("failing_codec", 2)
    assert one["parameters"] == two["parameters"]
    assert two["residuals"] > 0


RESUMED = {
    2: [{"compressor": name} for name in ("topk", "randomk", "powersgd:rank=2", "hardthreshold-warmup")],
    3: [
        {"compressor": "topk+nearest:levels=15", "collective": "shared"},
        {"compressor": "topk+bf16", "collective": "shared", "aged": True},
        {"compressor": "topk+bf16", "collective": "shared:leader=turns"},
        {"compressor": "topk+twobit", "collective": "owners", "aged": True},
    ],
}


@pytest.mark.parametrize("world", [2, 3])
def test_resume_is_exact(run_each: RunEach, world: int) -> None:
    """PowerSGD's factors, a codec's state and what owners have to send are restored as well as the residual."""
    for case, results in run_each("resumed", world, RESUMED[world]):
        for result in results:
            assert result["buckets"] >= 4, case
            assert result["resumed"] == result["whole"], case
