"""A training whose gradients do not reach the agent is said to be one, once; in one process, a world of one."""

import logging
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent

STEPS = 6


class Training:
    """A module of two layers, trained in a way that a test says."""

    def __init__(self, trains: str) -> None:
        layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        layers[1].requires_grad_(trains != "released")
        self.module: Any = DistributedDataParallel(layers)
        self.optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
        self.trains = trains

    def backward(self) -> None:
        dtype = self.module.module[0].weight.dtype
        forward = self.module.module if self.trains == "inside" else self.module
        with self.module.no_sync() if self.trains == "unsynced" else nullcontext():
            forward(torch.ones(3, 4, dtype=dtype)).sum().backward()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def change(it: Training) -> None:
    if it.trains == "converted":
        it.module.to(torch.bfloat16)
    elif it.trains == "released":
        it.module.module[1].requires_grad_(True)


SAID = {
    "inside": r"3 steps .* nothing was exchanged.*call the DistributedDataParallel module itself, not its \.module",
    "converted": r"3 steps .* nothing was exchanged.*convert the model .*before DistributedDataParallel wraps it",
    "unsynced": r"3 steps .* nothing was exchanged.*no_sync\(\).*leave the last backward before each step out of it",
    "released": r"2 of 4 trainable parameters .*'1\.weight'.*requires_grad.*wrap the module again",
}


@pytest.mark.parametrize("policy", ["observe", "auto", "static:cf=2"])
@pytest.mark.parametrize("trains", SAID)
def test_gradients_that_are_not_exchanged(
    world_of_one: None, tmp_path: Path, caplog: pytest.LogCaptureFixture, trains: str, policy: str
) -> None:
    caplog.set_level(logging.INFO, "gravac.agent")
    it = Training(trains)
    with Agent(it.module, it.optimizer, controller=None, data_dir=tmp_path, policy=policy) as agent:
        change(it)
        for _ in range(STEPS):
            it.step()
        assert agent.state is not None
        assert agent.state.step == (STEPS if trains == "released" else 0)
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    found = [one for one in said if "exchanged" in one]
    assert len(found) == 1, said
    assert re.search(SAID[trains], found[0]), found
    ended = [one.getMessage() for one in caplog.records if "ended after" in one.getMessage()]
    assert len(ended) == 1
    if trains != "released":
        assert "no gradient was exchanged" in ended[0]
        assert "expected to keep" not in caplog.text


def _twice(it: Training) -> None:
    it.step()
    it.optimizer.step()  # without gradients


def _two(it: Training) -> None:
    it.backward()
    for one in (it.optimizer, torch.optim.SGD(it.module.parameters(), lr=0.01)):
        one.step()
    it.optimizer.zero_grad()


def _accumulated(it: Training) -> None:
    with it.module.no_sync():
        it.backward()
    it.step()


def _closure(it: Training) -> None:
    def closure() -> float:
        it.optimizer.zero_grad()
        it.backward()
        return 0.0

    it.optimizer.step(closure)


def _evaluated(it: Training) -> None:
    it.module.module(torch.ones(3, 4))
    it.step()


@pytest.mark.parametrize("one", [Training.step, _twice, _two, _accumulated, _closure, _evaluated])
def test_gradients_that_are(
    world_of_one: None, tmp_path: Path, caplog: pytest.LogCaptureFixture, one: Callable[[Training], None]
) -> None:
    it = Training("plainly")
    with Agent(it.module, it.optimizer, controller=None, data_dir=tmp_path, policy="static:cf=2"):
        for _ in range(STEPS):
            one(it)
    assert "nothing was exchanged" not in caplog.text
    assert "are not exchanged" not in caplog.text
