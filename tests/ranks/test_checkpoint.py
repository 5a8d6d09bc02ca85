"""torch.distributed.checkpoint saves the states of all ranks at once, and any number of ranks loads them (P6)."""

from pathlib import Path

import pytest

import gravac
from gravac.protocol import WindowReport
from tests.support.ranks.harness import RunEach, RunRanks, run_ranks

pytestmark = pytest.mark.distributed


def test_one_call_saves_all_ranks_and_resume_is_exact(run_each: RunEach) -> None:
    """Residuals, a sketch, momentum and the factors of PowerSGD, with the agent at the top and inside an AppState."""
    cases = [
        {"nested": False},
        {"nested": True, "memory": "conef-sketch"},
        {"nested": False, "memory": "momentum"},
        {"nested": True, "compressor": "powersgd:rank=2"},
    ]
    for case, results in run_each("resumed_from_dcp", 2, cases):
        for result in results:
            assert result["buckets"] >= 4
            assert result["resumed"] == result["whole"], case
            assert "SetupError: the residual of" in result["without planner"], case
            assert "planner=gravac.LoadPlanner()" in result["without planner"]


def test_a_sharded_model_and_the_agent_in_one_checkpoint(run_ranks: RunRanks) -> None:
    for result in run_ranks("sharded_from_dcp", 2, fresh=True):
        assert result["same"]
        assert result["residual"] > 1e-3


@pytest.mark.parametrize(
    ("memory", "collective"), [("residual", "auto"), ("conef-sketch", "auto"), ("residual", "owners")]
)
def test_other_numbers_of_ranks_conserve_the_residual(tmp_path: Path, memory: str, collective: str) -> None:
    """2, 3, 2 ranks. Each run saves more residual than the tolerance, and reads all ranks of the one before."""
    options = {"memory": memory, "collective": collective}
    stages = [(2, "", "first"), (3, "first", "second"), (2, "second", "third")]
    for number, (world, load, save) in enumerate(stages):
        results = run_ranks(tmp_path, "resharded", world, load=load, save=save, first=10 * number, **options)
        for result in results:
            assert result["step"] == 10 * (number + 1)
            assert result["ranks"] == list(range(world))
            assert result["moved"] <= 1e-6 < 1e-3 < result["largest"]


@pytest.mark.parametrize("controller", ["auto", None])
def test_ranks_come_and_go_under_the_default_policy(tmp_path: Path, controller: str | None) -> None:
    """2, 1, 2 ranks in one journal. One rank sends dense, which is no plan of two: the residual stays, the plan not."""
    first, alone, again = (
        run_ranks(tmp_path, "elastic", world, load=load, save=save, controller=controller)
        for world, load, save in ((2, "", "one"), (1, "one", "two"), (2, "two", "three"))
    )
    assert first[0]["codec"] != "topk+bf16", "a codec that one rank does not build"
    for result in (*first, *alone, *again):
        assert result["job"] == "elastic"
        assert result["moved"] <= 1e-6
        assert result["phase"] != "fallback"
    assert [results[0]["steps"] for results in (first, alone, again)] == [[0, 20], [20, 40], [40, 60]]
    assert first[0]["held"] > 1e-3
    assert alone[0]["held"] == 0.0, "all of it was sent"
    said = [
        text for text in alone[0]["logged"] if f"the checkpoint sends with {first[0]['codec']}, which" in text
    ]
    assert said, alone[0]["logged"]
    assert not any("no valid answer" in text for text in alone[0]["logged"])
    assert gravac.check(tmp_path / "elastic/journal.jsonl").ok


@pytest.mark.parametrize("controller", ["auto", None])
def test_rank_0_moves_to_another_host_and_back(
    run_ranks: RunRanks, tmp_path: Path, controller: str | None
) -> None:
    """Each host has the journal of its part; the other part is missing there, and windows keep their numbers.

    Each host trains 16 steps after the checkpoint of the one before, which was taken after 10: windows of 5 steps.
    """
    run_ranks("rank_0_moves", 2, machines=["one", "two", "one"], controller=controller)
    numbers = {}
    for host in ("one", "two"):
        path = tmp_path / host / "moves/journal.jsonl"
        assert gravac.check(path).ok
        records = [line.record for line in gravac.read_trace(path)]
        numbers[host] = [
            (record.window, record.first_step, record.incarnation)
            for record in records
            if isinstance(record, WindowReport)
        ]
    assert [one[:2] for one in numbers["one"]] == [(window, 5 * window) for window in range(8)]
    assert [one[:2] for one in numbers["two"]] == [(1, 10), (2, 15), (3, 20), (4, 25)]
    starts = [one[2] for one in (*numbers["one"][:4], *numbers["two"], *numbers["one"][4:])]
    assert len(set(starts)) == 3
    assert all(len(set(starts[at : at + 4])) == 1 for at in (0, 4, 8))


def test_checkpoints_without_an_agent(run_ranks: RunRanks) -> None:
    for result in run_ranks("without_an_agent", 2):
        assert all("residual, plan and gains start from zero" in text for text in result["warned"]), result
        assert "enabled=False: the checkpoint's residual" in result["not enabled"]


DIFFER = {
    "age": "step",
    "none": "step",
    "buckets": "buckets",
    "network": "network",
    "gains": "gains",
}
"""What ranks load differently, each of them something that would do by itself."""


def test_what_a_rank_should_not_load_is_loaded_by_none(run_ranks: RunRanks) -> None:
    """States of another age, and nonsense: one error on all ranks, before anything changed; the job can start again."""
    found = run_ranks("loads_wrongly", 2)
    assert all(result["same"] and result["step"] == 10 for result in found)
    zero, one = (result["errors"] for result in found)
    assert len(zero) == len(one) == 45
    for name in zero:
        if name in DIFFER:
            message = f"AgreementError: all ranks need the same checkpoint, but {DIFFER[name]}: rank 0 has "
            assert message in zero[name], name
            assert zero[name] == one[name], name
        else:
            kind, _, said = one[name].partition(": ")
            assert kind == "SetupError", (name, said)
            assert zero[name] == f"SetupError: another rank cannot start: rank 1: {said}"
            assert "the agent state" in said, (name, said)
