"""P3: CF = 1 and enabled=False are plain DDP, bit for bit. P2: CFs switch on all ranks at once, despite delays."""

import math

import pytest

from tests.support.ranks.harness import RunEach, RunRanks

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.smoke), 3])
def test_dense_is_plain_ddp_bit_for_bit(run_each: RunEach, world: int) -> None:
    cases = [{"how": how, "buckets": buckets} for how in ("disabled", "dense") for buckets in (1, 8)]
    for case, results in run_each("same_as_ddp", world, cases):
        for result in results:
            assert result["agent"] == result["plain"], case


@pytest.mark.parametrize(("compressor", "steps"), [("topk", 1000), ("randomk", 280)])
def test_a_thousand_steps_with_cf_switched_every_ten(
    run_ranks: RunRanks, compressor: str, steps: int
) -> None:
    """The second codec, which has a state, runs for four rounds of the seven CFs."""
    one, two = run_ranks("switching", 2, steps=steps, every=10, compressor=compressor)
    assert one["parameters"] == two["parameters"]
    assert one["buckets"] >= 8
    assert one["sent"] == two["sent"]
    assert {1.0, 10.0, 40.0, 160.0, 1000.0} <= set(one["sent"])
    assert math.isfinite(one["loss"])
    assert one["payload_bytes"] < 0.6 * one["dense_bytes"]  # CF 1, 1.5 and 3 are among the seven


def test_the_gain_is_of_gradient_and_residual_together(run_ranks: RunRanks) -> None:
    """Divided by the raw gradient alone it would be too high: with error feedback p is larger."""
    for result in run_ranks("true_gains", 3):
        assert result["buckets"] >= 4
        assert len(result["found"]) >= 12
        for agents, truth, _ in result["found"]:
            assert agents == pytest.approx(truth, rel=1e-3)
        assert result["found"][-1][2] > 1.5  # ‖p‖² over ‖gradient‖²


def test_the_gain_over_the_raw_gradient_is_at_most_1(run_ranks: RunRanks) -> None:
    """What GraVAC's released code divides by (``gravac:denominator=gradient``)."""
    for result in run_ranks("true_gains", 3, raw_gain=True, cf=100.0, steps=40):
        for agents, truth, _ in result["found"]:
            assert agents == pytest.approx(min(1.0, truth), rel=1e-3)
        assert max(truth for _, truth, _ in result["found"]) > 0.5
