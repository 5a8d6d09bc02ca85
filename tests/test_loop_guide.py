"""Every block of code in docs/training-loop.md runs as it stands, with a real agent in a world of one."""

import contextlib
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent

GUIDE = (Path(__file__).parents[1] / "docs/training-loop.md").read_text()
SECTIONS = [
    (heading, block)
    for heading, text in re.findall(r"^##? (.*?)\n(.*?)(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL)
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of one, settings without a controller, and the handler of Ctrl-C put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRAVAC_CONTROLLER", "none")
    monkeypatch.setenv("GRAVAC_POLICY", "static:cf=2,epsilon=0.01")  # the first step is dense, so all moves
    handler = signal.getsignal(signal.SIGINT)
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    signal.signal(signal.SIGINT, handler)


def names() -> dict[str, Any]:
    """Return what the guide's reader has: a model, an optimizer, data, and a function that trains all of it."""

    def wrapped(model: nn.Module) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
        module = DistributedDataParallel(model)
        trainable = [param for param in module.parameters() if param.requires_grad]
        return module, torch.optim.SGD(trainable, lr=0.1)

    def train_one_step() -> None:
        pairs = [("ddp", "optimizer"), ("G", "g_optimizer"), ("D", "d_optimizer")]
        for inputs, targets in found["loader"][:1]:
            for module, optimizer in pairs:
                found["criterion"](found[module](inputs), targets).backward()
                found[optimizer].step()
                found[optimizer].zero_grad()
        found["trained"] += 1

    found: dict[str, Any] = {
        "torch": torch,
        "dist": dist,
        "os": os,
        "signal": signal,
        "threading": threading,
        "contextlib": contextlib,
        "Agent": Agent,
        "DistributedDataParallel": DistributedDataParallel,
        "loader": [(torch.randn(4, 8), torch.tensor([0, 1, 0, 1])) for _ in range(3)],
        "criterion": nn.CrossEntropyLoss(),
        "rank": 0,
        "steps": 3,
        "trained": 0,
        "saved": 0,
        "train_one_step": train_one_step,
    }
    found["micro_batches"] = found["loader"]
    found["save"] = lambda: found.__setitem__("saved", found["saved"] + 1)
    for module, optimizer in (("G", "g_optimizer"), ("D", "d_optimizer")):
        found[module], found[optimizer] = wrapped(nn.Linear(8, 2))
    return found


def test_the_guide_has_code() -> None:
    assert len(SECTIONS) >= 6


@pytest.mark.parametrize("block", [block for _, block in SECTIONS], ids=[heading for heading, _ in SECTIONS])
def test_it_runs(alone: None, block: str) -> None:
    found = names()
    inner = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    if "ddp" in block:  # the block wraps the model itself, a second time
        inner[0].requires_grad_(False)
    module = DistributedDataParallel(inner)
    found["optimizer"] = torch.optim.SGD(
        [param for param in module.parameters() if param.requires_grad], lr=0.1
    )
    found["model"], found["ddp"] = (inner if "ddp" in block else module), module
    del module
    before = {name: one.detach().clone() for name, one in inner.named_parameters()}
    for _ in range(2 if "os.path.exists" in block else 1):  # the second time from what the first one saved
        exec(block, found)
    moved = [name for name, one in inner.named_parameters() if not torch.equal(one, before[name])]
    if "train_one_step" in block:
        assert found["trained"] >= 1
    assert set(moved) == set(before)


def test_ctrl_c_saves_after_the_step(alone: None) -> None:
    """The block under the heading Ctrl-C, with the signal in the second step."""
    (block,) = (block for heading, block in SECTIONS if heading == "Ctrl-C")
    found = names()

    def step() -> None:
        found["trained"] += 1
        if found["trained"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    exec(block, found | {"train_one_step": step, "model": found["G"]})
    assert found["trained"] == 2
    assert found["saved"] == 1
