"""What simulated ranks learn: the same as plain training where they send everything, and as real ranks where not."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gravac_lab.simulate.__main__ import contender
from gravac_lab.simulate.learning import Learner
from gravac_lab.simulate.plans import PlanError, parse
from gravac_lab.simulate.ranks import SimulatedRanks, buckets_of
from gravac_lab.simulate.run import learn
from gravac_lab.simulate.tournament import TournamentRun, cells, done, run
from gravac_lab.tasks import Recipe, TaskError, loss_of, make
from tests.support.ranks.harness import run_ranks
from tests.support.ranks.scenarios.tasks import SIMULATED_TASK, sums_of

TASK = "logistic:images=digits"


def learner(recipe: Recipe, plan: str, ranks: int, steps: int) -> Learner:
    chosen = parse(plan)
    simulated = SimulatedRanks(ranks, chosen.compressor or "topk", chosen.memory, seed=1)
    return Learner(recipe, ranks, 1, steps, simulated)


def plainly_trained(recipe: Recipe, ranks: int, steps: int) -> list[Tensor]:
    """Plain training with the batches of all ranks in one."""
    model = recipe.build_model(1)
    optimizer = recipe.optimizer(model.parameters())
    (peak,) = {group["lr"] for group in optimizer.param_groups}
    batches = [recipe.batches(rank, ranks, 1) for rank in range(ranks)]
    for step in range(steps):
        inputs, classes = (torch.cat(column) for column in zip(*map(next, batches), strict=True))
        for group in optimizer.param_groups:
            group["lr"] = peak * recipe.schedule(step, steps)
        optimizer.zero_grad()
        loss_of(model(inputs), classes).backward()
        recipe.clip(model.parameters())
        optimizer.step()
    return [param.detach() for param in model.parameters()]


@pytest.mark.parametrize("ranks", [1, 2])
def test_dense_ranks_learn_what_one_process_learns_from_all_batches(ranks: int) -> None:
    """Several buckets, clipping, a schedule."""
    recipe = replace(make("digits:width=8"), bucket_mb=0.01)
    simulated = learner(recipe, "dense", ranks, 6)
    assert len(buckets_of(simulated.model, recipe.bucket_mb)) >= 4
    for _ in range(6):
        simulated.train(parse("dense").plan())
    begun = recipe.build_model(1).parameters()
    for ours, theirs, first in zip(
        simulated.model.parameters(), plainly_trained(recipe, ranks, 6), begun, strict=True
    ):
        moved = (theirs - first).abs().max()
        assert moved > 0
        assert (ours - theirs).abs().max() <= 1e-3 * moved


def test_a_memory_with_momentum_takes_it_over() -> None:
    """Else the optimizer would apply it again. Dense steps, so that the memory does what SGD with momentum does."""
    sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    recipe = replace(make("digits:width=8"), bucket_mb=0.01, clip_norm=None, optimizer=sgd)
    simulated = Learner(recipe, 2, 1, 6, SimulatedRanks(2, "topk", "momentum", seed=1))
    for _ in range(6):
        simulated.train(parse("dense").plan())
    for ours, theirs in zip(simulated.model.parameters(), plainly_trained(recipe, 2, 6), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.distributed
def test_simulated_ranks_learn_what_real_ranks_learn(tmp_path: Path) -> None:
    """Two processes with DDP, gloo and the agent, whose plans, buckets and parameters are compared with ours."""
    (real, other) = run_ranks(tmp_path, "task_trained", 2, steps=8, fresh=True)
    assert real["parameters"] == other["parameters"]
    assert [cf for _, cf in real["sent"]] == [1.0, 1.0] + [10.0] * 6
    assert len(real["layout"]) >= 4
    recipe = make(SIMULATED_TASK)
    simulated = Learner(recipe, 2, 1, 8, SimulatedRanks(2, "topk+bf16", seed=1), real["layout"])
    compressed = parse("topk+bf16@10").plan()
    plans = {1.0: replace(compressed, cf=1.0), 10.0: compressed}  # the first steps are dense, and measure
    payload = 0
    for _, cf in real["sent"]:
        payload += simulated.train(plans[cf]).exchanged.payload_bytes
    assert payload == real["payload_bytes"]
    assert sums_of(simulated.model) == pytest.approx(real["parameters"], rel=1e-5)


def test_the_same_seed_gives_the_same_row_and_alone_another_curve() -> None:
    first, again, lone, other = (
        learn(TASK, plan, 2, seed, 8, points=4)
        for plan, seed in (("qsgd:bits=2@16", 1), ("qsgd:bits=2@16", 1), ("alone", 1), ("qsgd:bits=2@16", 2))
    )
    for row in (first, again, lone, other):
        assert row.pop("cpu_seconds") >= 0
    assert first == again
    assert [point[0] for point in first["curve"]] == [2, 4, 6, 8] == [point[0] for point in lone["curve"]]
    assert first["curve"] != lone["curve"]
    assert first["curve"] != other["curve"]
    assert (lone["payload_bytes"], lone["sums"], "progress" in lone) == (0.0, {}, False)
    assert 0 < first["payload_bytes"] < 4 * first["elements"] / 8
    assert min(first["sums"][name] for name in ("sent_sq", "residual_sq", "reference_sq")) > 0
    assert 0 < first["progress"] < 2


def test_repetitions_of_dense_differ_by_rounding_errors_alone() -> None:
    """Each is another one, the same each time, and near dense before the errors grow."""
    dense, one, again, other = (
        learn(TASK, plan, 2, 3, 20, points=20)
        for plan in ("dense", "dense:repeat=1", "dense:repeat=1", "dense:repeat=2")
    )
    curves = [[point[1] for point in row["curve"]] for row in (dense, one, other)]
    assert one["curve"] == again["curve"]
    assert len({tuple(curve) for curve in curves}) == 3
    assert all(curve[0] == pytest.approx(curves[0][0], rel=1e-3) for curve in curves)
    assert (one["plan"], one["payload_bytes"]) == ("dense:repeat=1", dense["payload_bytes"])


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("topk", "names no strength: write topk@10"),
        ("dense:repeat=0", "repeat=0 must be a number from 1 to 1000"),
        ("dense:repeat=x", "repeat=x must be a number from 1 to 1000"),
        ("topk@ten", "'ten' is no number"),
        ("topk@1", "must be above 1"),
        ("topkk@10", "topkk.*did you mean.*topk"),
        ("topk@10/residul", "residul.*did you mean.*residual"),
        ("int8@4/residual/gathr", "collective='gathr' is unknown .did you mean 'gather'"),
        ("topk@10/residual/compressed-all-reduce", "needs a quantizer"),
    ],
)
def test_a_plan_that_does_not_exist_is_named_with_the_fix(plan: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        parse(plan)


def test_a_plan_may_name_its_collective() -> None:
    """A compressed all-reduce rounds the mean again and sends less than a gather; ``auto`` learns as a gather does."""
    auto, gathered, rounded = (
        learn(TASK, plan, ranks=4, seed=1, steps=6, points=3)
        for plan in (
            "nearest:levels=7@10",
            "nearest:levels=7@10//gather",
            "nearest:levels=7@10/residual/compressed-all-reduce",
        )
    )
    assert auto["curve"] == gathered["curve"] != rounded["curve"]
    assert auto["sent_bytes"] == gathered["sent_bytes"] > 1.3 * rounded["sent_bytes"]


def test_a_tournament_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    """Dense and alone are always in it. Of a row that was cut off the run is repeated, and no other one."""
    rows = tmp_path / "rows.jsonl"
    wanted = list(cells([TASK], [], [2], [1, 2], 2))
    assert {(cell.plan, cell.seed) for cell in wanted} == {
        (plan, seed) for plan in ("dense", "alone") for seed in (1, 2)
    }
    whole = [json.dumps(learn(cell.task, cell.plan, cell.ranks, cell.seed, cell.steps)) for cell in wanted]
    rows.write_text("\n".join(whole)[:-40])
    assert done(rows) == set(wanted[:3])
    assert rows.read_text() == "\n".join(whole)[:-40], (
        "reading changes nothing: another process may write the line"
    )
    lines = list(run(wanted, rows, workers=1))
    assert lines[0] == "1 of 4 runs to do"
    assert len(lines) == 2
    assert rows.read_text().splitlines()[:3] == whole[:3]
    assert done(rows) == set(wanted)
    assert list(run(wanted, rows, workers=1)) == ["0 of 4 runs to do"]
    repeated = json.loads(rows.read_text().splitlines()[-1])
    assert repeated["curve"] == json.loads(whole[-1])["curve"]
    assert done(tmp_path / "missing.jsonl") == set() == done(Path("/dev/null"))


def test_a_tournament_is_checked_before_it_begins() -> None:
    with pytest.raises(TaskError, match="did you mean"):
        list(cells(["logistc"], [], [2], [1], 2))
    with pytest.raises(PlanError, match="did you mean"):
        list(cells([TASK], ["topkk@10"], [2], [1], 2))
    with pytest.raises(TaskError, match="3 ranks cannot share a batch of 64"):
        list(cells([TASK], [], [3], [1], 2))
    assert TournamentRun(TASK, "dense", 2, 1, 2) in cells([TASK], [], [2], [1], 2)


def test_what_to_compare_with_is_a_plan_or_a_policy() -> None:
    """A plan becomes the static policy with its codec and memory; a policy keeps the job's codec."""
    plan = contender("dgc@40/momentum", "topk")
    assert (plan.policy, plan.compressor, plan.memory) == ("static:cf=40", "dgc", "momentum")
    assert plan.collective == "auto"
    assert contender("int8@4//gather", "topk").collective == "gather"
    listed = contender("auto:plans=topk@10", "topk")
    assert (listed.policy, listed.compressor) == ("auto:plans=topk@10", "topk")
    assert contender("dense", "topk").policy == "dense"
    assert contender("alone", "topk").policy == ""
    with pytest.raises(PlanError, match=r"autoo.*did you mean.*a plan is one of dense, alone, or CODEC@CF"):
        contender("autoo", "topk")
