"""The trainer's process group may have a backend for each type of device, and a communicator is a group's alone."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac.collectives import ProcessGroupCommunicator, backend_of
from gravac.protocol import JobSpec
from gravac.traces import read_trace
from gravac_agent import Agent
from gravac_agent.exchange.agreement import OwnGroups
from tests.support.streams.at_once import streams_for_agents

SPELLINGS = ("gloo", "cpu:gloo", "cpu:gloo,cuda:gloo", None)
"""What a trainer writes; None: it names no backend, and torch chooses."""


@pytest.fixture(params=SPELLINGS, ids=str)
def spelled_group(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group(request.param, store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(folder: Path) -> Agent:
    torch.manual_seed(0)
    module = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with Agent(module, optimizer, data_dir=folder, controller=None, policy="dense") as agent:
        module(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    return agent


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The backends that an agent's own groups were made with."""
    backends = list[str]()
    new = OwnGroups.new

    def noting(self: OwnGroups, members: list[int], seconds: float | None, backend: str) -> Any:
        backends.append(backend)
        return new(self, members, seconds, backend)

    monkeypatch.setattr(OwnGroups, "new", noting)
    return backends


def test_a_backend_is_known_however_it_was_named(
    spelled_group: None, tmp_path: Path, made: list[str]
) -> None:
    group = dist.group.WORLD
    assert group is not None
    assert backend_of(group, "cpu") == "gloo"
    assert backend_of(group, "xpu") == "", "none, which is no other's"
    assert ProcessGroupCommunicator(group).scatters_whole
    train(tmp_path)
    (trace,) = tmp_path.rglob("journal.jsonl")
    spec = next(iter(read_trace(trace))).record
    assert isinstance(spec, JobSpec)
    assert spec.environment.backend == "gloo"
    # One with a second backend would make a communicator on the GPU, which nothing of ours uses.
    assert made == ["gloo", "gloo"]


@pytest.mark.parametrize("streams", [False, True], ids=["host", "device"])
def test_a_device_has_no_communicator_of_the_agent(
    world_of_one: None, tmp_path: Path, made: list[str], streams: bool
) -> None:
    """Two in flight on a GPU may wait for each other. One thread issues all there, so DDP's own group keeps its order.
    Where ``init_process_group`` bound a device, making one would also wait for ranks that have no part in it."""
    with streams_for_agents() if streams else nullcontext():
        train(tmp_path)
    assert made == ["gloo"] * (1 if streams else 2)
