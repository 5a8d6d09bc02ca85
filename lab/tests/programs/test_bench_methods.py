"""Methods of ``gravac bench train`` in one process: each trains as its name says."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from gravac_lab.programs.methods import apply
from gravac_lab.programs.train import Trainer
from gravac_lab.tasks import Schedule, lm

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


def test_a_learning_rate_that_falls(tmp_path: Path) -> None:
    """After the ramp it falls in a straight line, from the first to the last of its steps."""
    task = replace(lm.demo(16), schedule=Schedule(ramp_steps=2, floor=0.0)).on_rank(0, 1, 0)
    full = task.recipe.optimizer([torch.nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"]
    with apply("dense", task, "none", tmp_path, 20) as applied:
        trainer = Trainer(task=task, applied=applied, interface=None, heldout_batches=1, decay=(4, 8))
        rates = []
        for _ in range(9):
            rates.append(applied.optimizer.param_groups[0]["lr"] / full)
            trainer.train(1)
    assert rates == pytest.approx([0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0])
