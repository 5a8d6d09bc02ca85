"""Methods of ``gravac bench train`` in one process: each trains as its name says."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from gravac_lab.programs.methods import AgentSpec, MethodError, agent_spec, apply
from gravac_lab.programs.train import Trainer
from gravac_lab.tasks import lm, make
from tests.ranks.scenarios.tasks import SEED, TEXT_TASK
from tests.support.ranks.harness import run_ranks

STEPS = 5


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(method: str, folder: Path, clip_norm: float) -> tuple[Tensor, Trainer]:
    task = replace(lm.demo(16), clip_norm=clip_norm).on_rank(0, 1, 0)
    with apply(method, task, "none", folder, 20) as applied:
        trainer = Trainer(task=task, applied=applied, interface=None, heldout_batches=1)
        trainer.train(STEPS)
        return torch.cat([param.detach().flatten() for param in task.model.parameters()]), trainer


def test_an_agent_that_stays_dense_is_plain_ddp(tmp_path: Path) -> None:
    plain, _ = trained("dense", tmp_path, 1.0)
    ours, trainer = trained("agent///dense", tmp_path, 1.0)
    assert torch.equal(ours, plain)
    assert trainer.applied.clip_norm == 1.0


def test_momentum_is_applied_by_the_memory_or_the_optimizer(tmp_path: Path) -> None:
    """Never by both: dense and without clipping, the result is the same."""
    plain, _ = trained("dense", tmp_path, math.inf)
    ours, trainer = trained("agent//momentum/dense", tmp_path, 1e-3)
    assert trainer.applied.clip_norm == math.inf, "the memory sends more than one step's gradient"
    assert [group["momentum"] for group in trainer.applied.optimizer.param_groups] == [0.0]
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(plain, trained("dense", tmp_path, 1e-3)[0], rtol=1e-3)


@pytest.mark.distributed
def test_diloco_averages_how_far_ranks_came(tmp_path: Path) -> None:
    """Two ranks, by hand: after 3 steps alone, and Nesterov's first step, the outer rate times 1.9 of the mean way."""
    ranks = run_ranks(tmp_path, "trained_by", 2, methods=["alone", "diloco:3"], steps=[3, 5, 6])
    start = nn.utils.parameters_to_vector(make(TEXT_TASK).build_model(SEED).parameters()).detach()
    ends = [torch.tensor(rank["alone"][0][0]) for rank in ranks]
    assert not torch.allclose(ends[0], ends[1])
    first, second, third = zip(*(rank["diloco:3"] for rank in ranks), strict=True)
    expected = start + 0.7 * 1.9 * ((ends[0] + ends[1]) / 2 - start)
    torch.testing.assert_close(torch.tensor(first[0][0]), expected)
    assert first[0] == first[1]
    assert second[0][0] != second[1][0], "alone again"
    assert third[0] == third[1]
    assert third[0][0] != first[0][0]
    assert [sent for _, sent in (first[0], second[0], third[0])] == [
        start.nbytes,
        start.nbytes,
        2 * start.nbytes,
    ]


@pytest.mark.parametrize(
    ("method", "spec"),
    [
        ("agent", AgentSpec(None, None, None)),
        ("agent/qsgd:bits=4", AgentSpec("qsgd:bits=4", None, None)),
        ("agent//conef:bits=4", AgentSpec(None, "conef:bits=4", None)),
        ("agent///gravac:ladder=10/40/160", AgentSpec(None, None, "gravac:ladder=10/40/160")),
        ("agent:flat/topk", AgentSpec("topk", None, None, "flat")),
    ],
)
def test_agent_methods(method: str, spec: AgentSpec) -> None:
    assert agent_spec(method) == spec


@pytest.mark.parametrize("method", ["agent/nosuch", "agent//nosuch", "agent///nosuch", "agent/qsgd:bits=99"])
def test_agent_methods_that_are_none(method: str) -> None:
    with pytest.raises(MethodError, match=f"method '{method}'"):
        agent_spec(method)
