"""What simulated ranks learn: the same as plain training where they send everything, and as real ranks where not."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gravac_lab.simulate.__main__ import contender
from gravac_lab.simulate.learning import Learner
from gravac_lab.simulate.plans import PlanError, parse
from gravac_lab.simulate.ranks import SimulatedRanks
from gravac_lab.tasks import Recipe, loss_of, make
from tests.ranks.scenarios.tasks import SIMULATED_TASK, sums_of
from tests.support.ranks.harness import run_ranks


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
