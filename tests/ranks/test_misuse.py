"""An error on one rank ends all ranks: none waits for another in vain. And uneven inputs."""

import json
from pathlib import Path

import pytest

from tests.support.ranks.harness import RunEach, RunRanks

pytestmark = pytest.mark.distributed

UNEVEN = [
    {"counts": [13, 9, 4], "policy": "dense"},
    {"counts": [4, 13, 9], "policy": "static:cf=10", "samples": 16},
    {"counts": [12, 0, 12], "policy": "static:cf=10", "compressor": "powersgd"},
    {"counts": [7, 7, 7], "policy": "static:cf=10"},
]


def test_uneven_inputs_in_a_join_context(run_each: RunEach) -> None:
    for case, results in run_each("uneven", 3, UNEVEN):
        steps = 2 * max(case["counts"])
        for result in results:
            assert result["agent"] == results[0]["agent"], case
            assert (result["agent"] == result["plain"]) == (case["policy"] == "dense"), case
            assert result["steps"] == steps, case
            assert result["windows"] == -(-steps // 5), case
            assert not result["looks"], "a rank that shadows the others dropped nothing"
        assert sum(results[0]["samples"]) == 16 * 2 * sum(case["counts"]), case


ALONE = {
    "optimizer": ("SGD steps none of the module's 18 trainable parameters", 1),
    "hook": ("already has a communication hook", 1),
    "policy": ("no policy on this host", 1),
    "reporter": ("no reporter on this host", 0),
    "job": ("job: rank 0 has 'second', rank 1 has 'third'", None),
    "join": ("`with Agent(...):` around `with Join([module]):`", None),
    "load another model": (r"'0.weight' has shape (32, 128) there and (64, 64) here", 1),
    "load half a state": ("the agent state lacks 'shapes': it is damaged", 1),
    "load nonsense": ("cannot be loaded", 1),
}


def test_a_setup_that_fails_on_one_rank_fails_on_all_at_once(run_each: RunEach) -> None:
    for case, results in run_each("fails_alone", 3, [{"what": what} for what in ALONE]):
        message, culprit = ALONE[case["what"]]
        for rank, result in enumerate(results):
            assert message in result["error"], case
            assert result["seconds"] < 40, case
            assert result["left"] == [], case
            if culprit is not None and rank != culprit:
                assert f"SetupError: another rank cannot start: rank {culprit}: " in result["error"], case


@pytest.mark.parametrize("trains", [False, True])
def test_a_rank_without_an_agent_is_named(run_ranks: RunRanks, trains: bool) -> None:
    """Soon, and in the error. Also one that trains under plain DDP, whose collectives are others."""
    for result in run_ranks("no_agent_on_rank_1", 3, fresh=True, trains=trains)[::2]:
        said = "rank 1 has not started an Agent yet: every rank must, in the same order"
        assert any(said in text for text in result["logged"]), result
        assert f"PeerError: {said}" in result["error"]
        assert result["seconds"] < 30


def test_a_rank_that_loads_no_state_is_noticed(run_ranks: RunRanks) -> None:
    one, two, three = run_ranks("fails_alone", 3, what="load not")
    for result in (one, three):
        assert "SetupError: load_state_dict was not called on all ranks" in result["error"]
    assert "AgreementError" in two["error"] or "PeerError" in two["error"]  # whichever reaches it first
    assert two["seconds"] < 40


@pytest.mark.parametrize("cf", [1.0, 10.0])
def test_a_dead_peer_raises_peer_error(run_ranks: RunRanks, tmp_path: Path, cf: float) -> None:
    for result in run_ranks("peer_dies", 3, fresh=True, cf=cf)[:2]:
        assert "PeerError: a collective failed because another rank ended" in result["error"]
        assert "gloo" in result["error"]  # the original error
        assert result["kept"]  # no optimizer used what a broken collective left
        assert result["seconds"] < 60
    assert json.loads((tmp_path / "rank2.json").read_text()) == {}


def test_a_compiled_module_trains_like_one_that_is_not_compiled(run_ranks: RunRanks) -> None:
    for result in run_ranks("compiled", 2, fresh=True):
        assert result["dense"] == result["plain"]
        assert result["compressed"] == result["not compiled"] != result["plain"]
        assert result["compressed steps"] == result["dense steps"] == [17, 3, 3]


def test_a_bad_step_is_skipped_by_all_optimizers_of_the_module(run_ranks: RunRanks) -> None:
    for result in run_ranks("several_optimizers", 2):
        assert result["kept"]
        assert result["moved"]
        assert result["skipped"] == 1
