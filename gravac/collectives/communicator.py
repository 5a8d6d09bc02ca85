"""What collectives need of a network: a few operations among equals, issued in the same order by all."""

from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

# The spelling of torch 2.13; older ones know only the long name, which 2.13 deprecates.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Work(Protocol):
    """An operation in flight; ``torch.distributed.Work`` is one."""

    def wait(self) -> Any:
        """Return when it is done. Raises what went wrong."""

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that is set when it is done."""


class Communicator(ABC):
    """One rank's end of a group. Every operation returns at once; its tensors must not be touched until it is done."""

    rank: int
    size: int

    @abstractmethod
    def sum(self, x: Tensor) -> Work:
        """Replace ``x`` by the sum over ranks, the same bits on all."""

    @abstractmethod
    def maximum(self, x: Tensor) -> Work:
        """Replace ``x`` by the elementwise maximum over ranks. It must hold no NaN: whose wins is not defined."""

    @abstractmethod
    def gather(self, out: Tensor, x: Tensor) -> Work:
        """Write every rank's ``x`` to ``out``, one after the other in rank order; sizes are equal on all ranks."""

    @abstractmethod
    def broadcast(self, x: Tensor, root: int) -> Work:
        """Replace ``x`` by that of rank ``root``."""

    @abstractmethod
    def exchange(self, out: Tensor, x: Tensor) -> Work:
        """All to all: ``x`` holds a part for each rank, in rank order and equally long on all; ``out`` gets what each
        rank has for this one, in rank order."""


class ProcessGroupCommunicator(Communicator):
    """A ``torch.distributed`` group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.size = group, group.rank(), group.size()

    def sum(self, x: Tensor) -> Work:
        return _issued(dist.all_reduce(x, group=self.group, async_op=True))

    def maximum(self, x: Tensor) -> Work:
        return _issued(dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group, async_op=True))

    def gather(self, out: Tensor, x: Tensor) -> Work:
        return _issued(_all_gather(out, x, group=self.group, async_op=True))

    def broadcast(self, x: Tensor, root: int) -> Work:
        return _issued(dist.broadcast(x, group=self.group, group_src=root, async_op=True))

    def exchange(self, out: Tensor, x: Tensor) -> Work:
        return _issued(dist.all_to_all_single(out, x, group=self.group, async_op=True))


class Done:
    """An operation that is over already."""

    def wait(self) -> None:
        return

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(None)
        return future


class _Alone(Communicator):
    """A world of one: what it has is the sum, the maximum and all there is."""

    rank, size = 0, 1

    def sum(self, x: Tensor) -> Work:
        return Done()

    def maximum(self, x: Tensor) -> Work:
        return Done()

    def gather(self, out: Tensor, x: Tensor) -> Work:
        out.copy_(x)
        return Done()

    def broadcast(self, x: Tensor, root: int) -> Work:
        return Done()

    def exchange(self, out: Tensor, x: Tensor) -> Work:
        out.copy_(x)
        return Done()


ALONE: Communicator = _Alone()


def communicator(group: dist.ProcessGroup | Communicator) -> Communicator:
    """``group`` as a communicator, whichever it is."""
    return group if isinstance(group, Communicator) else ProcessGroupCommunicator(group)


def _issued(work: dist.Work | None) -> dist.Work:
    assert work is not None  # None: this rank is not in the group
    return work
