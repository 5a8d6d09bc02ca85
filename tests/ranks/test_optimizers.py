"""Optimizers other than torch's own, and other optimizers than the one that the agent was given."""

import math
from typing import Any

import pytest

from tests.support.ranks.harness import RunEach, RunRanks

pytestmark = pytest.mark.distributed


def test_no_step_of_a_users_optimizer_runs_on_made_up_data(run_each: RunEach) -> None:
    """The trial of a second optimizer made the ranks of a distributed Muon wait for each other, and drew numbers."""
    for case, (one, two) in run_each("own_optimizers", 2, [{"kind": "muon"}, {"kind": "rounds"}], seconds=60):
        assert one == two, case
        assert one["dense"] == one["plain"], case
        assert one["compressed"]["parameters"] != one["plain"]["parameters"], case
        assert one["compressed"]["loss"] == pytest.approx(one["plain"]["loss"], rel=0.01), case


HOW = ["swapped", "sam", "sam, base given", "sam, subtracting", "sam, closure", "handmade"]


def test_gradients_are_used_whatever_optimizer_steps(run_each: RunEach) -> None:
    """The agent took the absence of the given optimizer's step for gradients that the trainer dropped."""
    cases = [{"how": how, "cf": 2.0} for how in HOW]
    for case, (one, two) in run_each("stepped_by_others", 2, cases):
        assert one["agent"]["parameters"] == two["agent"]["parameters"] != one["plain"]["parameters"], case
        notified, agent = one["notified"], one["agent"]
        if case["how"] == "swapped":  # SAM uses every second one: tests/ranks/test_perturbed.py
            assert agent["parameters"] == notified["parameters"], case
            assert agent["residual"] == notified["residual"], case
        assert agent["residual"] != 0.0, case
        assert agent["loss"] < 1.01 * one["plain"]["loss"], case
        assert len(agent["notes"]) == 1, (case, agent["notes"])


def test_a_nan_on_one_rank_stays_out_whatever_optimizer_steps(run_each: RunEach) -> None:
    cases = [{"how": how, "cf": 4.0, "bad_step": 20} for how in ("swapped", "sam", "sam, closure")]
    for case, results in run_each("stepped_by_others", 2, cases):
        assert results[0]["agent"]["parameters"] == results[1]["agent"]["parameters"], case
        for result in results:
            assert math.isnan(result["plain"]["loss"]), case
            assert result["agent"]["loss"] < 0.65, case


AGED: list[dict[str, Any]] = [
    {},
    {"bad_step": 12, "failing_step": 7, "clip": 0.5},
    {"switches": {"10": "int4", "20": "randomk"}},
    {"scaled": True, "bad_step": 12},
    {"unused": True},
    {"backwards": 2},
    {"closure": "ends", "bad_step": 12},
    {"resume": 15},
    {"restarts": True, "resume": 15},
    {"adapt": True, "bad_step": 12, "clip": 0.5, "switches": {"10": "int4", "20": "randomk"}},
    {"adapt": True, "resume": 15, "backwards": 2},
    {"adapt": True, "scaled": True, "bad_step": 12},
    {"undecodable": True},
    {"streams": True, "compressor": "topk", "scaled": True, "bad_step": 5, "steps": 14},
    {"streams": True, "whole": True, "bad_step": 12, "clip": 0.5, "restarts": True},
    {"streams": True, "whole": True, "resume": 15, "compressor": "topk+bf16"},
]
OWNERS: list[dict[str, Any]] = [
    {"collective": "owners"},
    {"collective": "owners", "bad_step": 12, "failing_step": 7, "scaled": True},
    {"collective": "owners", "compressor": "topk+bf16", "resume": 15},
    {
        "collective": "owners",
        "streams": True,
        "compressor": "topk",
        "scaled": True,
        "bad_step": 5,
        "steps": 14,
    },
]
WHOLE: list[dict[str, Any]] = [
    {"compressor": "int4"},
    {"policy": "dense"},
    {"enabled": False},
    {"adapt": True, "compressor": "int4"},
    {"switches": {"20": "int4"}},
    {"closure": "does not"},
]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_agent_tells_which_elements_arrived(run_each: RunEach, world: int) -> None:
    """A step of gravac.optim.AdamW is what it makes, by hand, of the elements that are not 0 and of how many ranks say
    that they sent them; equal on all ranks."""
    for case, results in run_each("aged", world, [*(AGED if world == 2 else AGED[:4]), *OWNERS]):
        first = results[0]
        assert all(result == first for result in results), case
        assert first["by hand"], case
        assert first["undone"], case
        assert not first["by torch"], case
        assert first["oldest"] > 8, case
        assert first["pooled"], case
        assert first["buckets"] > 2, case
        assert first["steps"] == case.get("steps", 30) - case.get("scaled", False), case
        assert first["notes"] == [], case


def test_where_every_element_arrives_it_is_torchs_step(run_each: RunEach) -> None:
    for case, results in run_each("aged", 2, WHOLE):
        first = results[0]
        assert first == results[1], case
        assert first["by hand"] != (blind := "closure" in case), case
        assert first["by torch"] != ("switches" in case), case
        assert first["oldest"] == 0, case
        assert len(first["notes"]) == blind, case
        assert all("takes every element of its gradients as arrived" in note for note in first["notes"]), case


def test_each_parameter_follows_its_own_optimizer(run_ranks: RunRanks) -> None:
    one, two = run_ranks("three_optimizers", 2)
    assert one == two
    assert one["kind"] == ["gravac.optim.AdamW, gravac.optim.Adam, SGD", "adam-aged", 0.01]
    assert min(one["ages"]) > 1, "both know when elements arrived"
    assert one["followed"] == ["sometimes.weight"], "its residual follows the rate that changed"
    assert len(one["kept"]) == one["count"] - 1 > 3
    assert one["classes"] == ["gravac.optim.adam", "torch.optim.adam", "torch.optim.sgd"], "undone"
