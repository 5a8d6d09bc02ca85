"""HSDP in whole jobs: all nodes follow the same decisions, and nothing is lost when a step or the agent ends."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from gravac_controller.cli import main
from tests.support.ranks.harness import RunEach, RunRanks

pytestmark = pytest.mark.distributed
FRESH_RANKS = True  # a mesh and the groups of a sharded model stay with the process


def test_shards_of_one_rank_are_native_hsdp_bit_for_bit(run_each: RunEach) -> None:
    for case, results in run_each("shards_of_one", 4, [{"enabled": True}, {"enabled": False}]):
        for result in results:
            assert result["same"], case
            assert result["weights"] > 0.0


def test_a_closed_agent_sends_what_waits_with_the_next_gradients(run_each: RunEach) -> None:
    cases: list[dict[str, object]] = [{"compressor": "topk+bf16"}, {"compressor": "randomk"}]
    for how in ("native", "replicate"):  # PyTorch averages these replicas again
        cases += [{**cases[0], "how": how}, {**cases[0], "how": how, "late": True}]
    for case, results in run_each("residual_after_close", 4, cases):
        for result in results:
            assert result["taken"] == result["back"] == ("how" in case), case
            assert result["cf"] == 8, case
            assert result["waited"] > 0.0, case
            assert result["error"] < 3e-6, case
            assert result["after"] < 3e-6, case


def test_the_mean_gradient_is_counted_once_whatever_holds_it(run_ranks: RunRanks) -> None:
    """By ``replicate()`` each rank holds all of it, by FSDP2 a row."""
    found = run_ranks("mean_of_kinds", 4)[0]
    assert found["ddp"][0] > 0.0
    for kind in ("fsdp", "replicate"):
        assert found[kind] == pytest.approx(found["ddp"], rel=1e-4), kind


def test_a_non_finite_gradient_skips_the_step_on_all_nodes_and_a_switched_memory_knows_its_nodes(
    run_each: RunEach,
) -> None:
    cases = [{"compressor": "topk", "cf": 10.0}, {"compressor": "blockrandomk", "cf": 10.0}]
    cases += [{"compressor": "topk", "cf": 1.0}]
    cases += [{"compressor": "topk", "cf": 10.0, "how": how} for how in ("native", "replicate")]
    for case, results in run_each("hybrid_nonfinite", 4, cases):
        for result in results:
            averaged = 4 if case.get("how") == "replicate" else 2
            expected = {"kept": True, "finite": True, "moved": True, "counted": 1, "averaged": averaged}
            assert result == expected, case


BESIDES = ("gravac.optim", "adapt_optimizer", "switch", "unused", "offload", "compiled", "dcp")


@pytest.mark.parametrize("how", ["native", "replicate"])
def test_replicas_stay_equal_with_what_trainers_use_besides(run_each: RunEach, how: str) -> None:
    for case, results in run_each("replicas_with", 4, [{"how": how, "what": what} for what in BESIDES]):
        for result in results:
            assert result["equal"], case
            assert result["kept"], case
            assert result["wire"] > 8.0, case
            assert result["waits"] > 0.0, case


@pytest.mark.parametrize("how", ["given", "native", "replicate"])
def test_all_nodes_follow_the_same_decisions(run_ranks: RunRanks, how: str) -> None:
    """On an emulated link, with the policy ``auto``; the journal replays."""
    results = run_ranks("hybrid_job", 4, policy="auto", how=how)
    for result in results:
        assert result["windows"] >= 2
        assert (result["cf"], result["epoch"]) == (results[0]["cf"], results[0]["epoch"])
        assert result["fewer"] > 2.0
        assert result["equal"]
    done = CliRunner().invoke(main, ["replay", str(Path(results[0]["trace"]).parent), "--check"])
    assert done.exit_code == 0, done.output
