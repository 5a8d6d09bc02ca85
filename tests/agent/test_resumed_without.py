"""A run that goes on without the agent's state is warned once: what the earlier one had not sent is lost."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent
from tests.support.small_model import pair, step

LOST = "no state of an Agent was loaded"


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and LOST in record.getMessage()
    ]
    caplog.clear()
    return found


@pytest.mark.parametrize(
    "made",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
        lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    ],
)
def test_an_optimizer_that_has_stepped(
    world_of_one: None, tmp_path: Path, caplog: pytest.LogCaptureFixture, made: Any
) -> None:
    options: dict[str, Any] = {"controller": None, "data_dir": tmp_path, "policy": "static:cf=2"}

    def fresh() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
        module = DistributedDataParallel(nn.Linear(4, 2))
        return module, made(module.parameters())

    module, optimizer = fresh()
    with Agent(module, optimizer, **options) as agent:
        for _ in range(3):
            step(module, optimizer)
        saved, state = agent.state_dict(), optimizer.state_dict()
    with Agent(module, optimizer, **options):
        step(module, optimizer)
    assert not lost(caplog), "a training from the beginning, and one that got its residual back"
    module, optimizer = fresh()
    optimizer.load_state_dict(state)
    with Agent(module, optimizer, **options):
        for _ in range(3):
            step(module, optimizer)
    (said,) = lost(caplog)
    assert "the optimizer has stepped before" in said
    module, optimizer = fresh()
    optimizer.load_state_dict(state)
    with Agent(module, optimizer, **options) as agent:
        agent.load_state_dict(saved)
        step(module, optimizer)
    module, optimizer = fresh()
    optimizer.load_state_dict(state)
    with Agent(module, optimizer, **options | {"policy": "observe"}):
        step(module, optimizer)
    assert not lost(caplog)


@pytest.mark.parametrize("controller", ["auto", None])
def test_a_job_that_goes_on(
    world_of_one: None, tmp_path: Path, caplog: pytest.LogCaptureFixture, controller: str | None
) -> None:
    """Where the optimizer has nothing that tells: plain SGD."""
    options: dict[str, Any] = {"controller": controller, "data_dir": tmp_path, "job": "again", "window": 2}
    saved: dict[str, Any] = {}
    for start in range(3):
        module, optimizer = pair()
        with Agent(module, optimizer, policy="static:cf=2", **options) as agent:
            assert agent.wait_ready(60)
            if start == 2:
                agent.load_state_dict(saved)
            for _ in range(7):
                step(module, optimizer)
            saved = agent.state_dict()
        found = lost(caplog)
        assert len(found) == (start == 1), (start, found)
        assert start != 1 or "job 'again' goes on" in found[0]
