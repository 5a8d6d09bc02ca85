"""A trainer that never calls ``torch.cuda.set_device``: all that is done on a GPU is done on that of the gradients."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac.kernels.backend import placed
from gravac_agent import Agent
from gravac_agent.devices.cuda import CudaDevice, made_current
from gravac_agent.exchange.agreement import _device_of
from gravac_agent.setup.agree import device_of
from gravac_agent.windows.meters import TrainerInput

MINE = torch.device("cuda", 1)


class OnMine(torch.Tensor):
    """A tensor on the second GPU, as far as a machine without one can tell."""

    is_cuda = True  # type: ignore[assignment]
    device = MINE  # type: ignore[assignment]

    def detach(self) -> "OnMine":
        return self


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The GPUs on which something is done whose place follows from the current one. That is the first GPU at first."""
    current, found = [0], list[int]()

    class Guard:
        def __init__(self, device: torch.device) -> None:
            self._index = device.index

        def __enter__(self) -> None:
            current.append(self._index)

        def __exit__(self, *_: object) -> None:
            current.pop()

    class Event:
        def __init__(self, **_: object) -> None: ...

        def record(self, stream: int | None = None) -> None:
            found.append(current[-1] if stream is None else stream)

        def synchronize(self) -> None: ...

        def elapsed_time(self, other: object) -> float:
            return 1.0

    def noting(result: Any) -> Callable[..., Any]:
        def note(*_: object, **__: object) -> Any:
            found.append(current[-1])
            return result

        return note

    zeros, to = torch.zeros, torch.Tensor.to

    def pinned_zeros(*args: Any, pin_memory: bool = False, **named: Any) -> torch.Tensor:
        if pin_memory:
            found.append(current[-1])
        return zeros(*args, **named)

    monkeypatch.setattr(torch, "zeros", pinned_zeros)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: (found.append(current[-1]), self)[1])
    monkeypatch.setattr(
        torch.Tensor,
        "to",
        lambda self, place, **named: self if torch.device(place) == MINE else to(self, place, **named),
    )
    monkeypatch.setattr(torch.cuda, "device", Guard)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", noting(None))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", noting(False))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device=None: current[-1] if device is None else device.index
    )
    return found


USES: dict[str, Callable[[], object]] = {
    "pinned memory of the tick": lambda: CudaDevice(MINE).pinned(4, torch.float64),
    "a look for a capture": lambda: CudaDevice(MINE).refuse_capture(),
    "an emulated link": lambda: CudaDevice(MINE).delay(0.1),
    "a constant of a codec": lambda: placed(torch.ones(3, device="cpu"), MINE),
    "a loss that is logged": lambda: TrainerInput().log_loss(
        torch.Tensor._make_subclass(OnMine, torch.ones((), device="cpu"))
    ),
}


@pytest.mark.parametrize("what", USES)
def test_each_use_is_of_the_gradients_gpu(used: list[int], what: str) -> None:
    USES[what]()
    assert used
    assert set(used) == {1}


def test_a_start_runs_on_the_gradients_gpu(
    world_of_one: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it gathers texts over NCCL, and compiles kernels: two ranks on one GPU cannot gather."""
    asked = list[object]()
    monkeypatch.setattr(
        "gravac_agent.agent.made_current", lambda device: (asked.append(device), nullcontext())[1]
    )
    module = DistributedDataParallel(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with Agent(module, optimizer, controller=None, data_dir=tmp_path, policy="dense"):
        pass
    assert asked == [torch.device("cpu")]


def test_the_device_of_a_group_is_the_current_one(used: list[int]) -> None:
    class Group:
        _device_types = (torch.device("cuda"),)

    with made_current(MINE):
        assert _device_of(Group()) == MINE  # type: ignore[arg-type]
    found = device_of(MINE)
    assert found is not None
    assert found.device == MINE
