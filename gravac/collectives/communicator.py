"""The few operations that collectives need of a network. All ranks issue them in the same order."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

# The spelling of torch 2.13; older ones know only the long name, which 2.13 deprecates.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_PAIRED_RANKS = 8
"""Ranks up to which ``exchange`` sends in pairs: each pair costs the CPU about 50 us, and the gain falls with ranks."""


class Work(Protocol):
    """An operation in flight; ``torch.distributed.Work`` is one."""

    def wait(self) -> Any:
        """Wait until the operation is done. Raises its error."""

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that is set when the operation is done."""


class Communicator(ABC):
    """One rank's end of a group. Every operation returns at once; its tensors must not be used until it is done."""

    rank: int
    size: int
    scatters_whole: bool = False
    """Whether ``scatter_sum`` is an all-reduce of which each rank keeps its part, as with gloo."""
    issued: int = 0
    """Operations that this rank began to issue. A failure that leaves it as it was came before the first one."""

    @abstractmethod
    def sum(self, x: Tensor) -> Work:
        """Replace ``x`` by its sum over ranks, bit-equal on all of them."""

    @abstractmethod
    def maximum(self, x: Tensor) -> Work:
        """Replace ``x`` by its elementwise maximum over ranks. With NaN in ``x`` the result is undefined."""

    @abstractmethod
    def gather(self, out: Tensor, x: Tensor) -> Work:
        """Write every rank's ``x`` to ``out`` in rank order. Sizes are equal on all ranks."""

    @abstractmethod
    def broadcast(self, x: Tensor, root: int) -> Work:
        """Replace ``x`` by that of rank ``root``."""

    @abstractmethod
    def exchange(self, out: Tensor, x: Tensor) -> Work:
        """Do an all-to-all.

        Args:
            out: Receives the part that each rank has for this one, in rank order.
            x: A part for each rank, in rank order, equally long on all ranks.
        """

    @abstractmethod
    def scatter_sum(self, out: Tensor, x: Tensor) -> Work:
        """Do a reduce-scatter.

        Args:
            out: Receives the sum over ranks of the parts that they have for this one.
            x: A part for each rank, in rank order, equally long on all ranks.
        """


class ProcessGroupCommunicator(Communicator):
    """A ``torch.distributed`` process group.

    Args:
        group: The group.
        device: Type of the device that the tensors are on.
    """

    def __init__(self, group: dist.ProcessGroup, device: str = "cpu") -> None:
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.scatters_whole = backend_of(group, device) == "gloo"
        # Gloo sends no message from a GPU.
        self._paired_ranks = _PAIRED_RANKS if self.scatters_whole and device == "cpu" else 0

    def sum(self, x: Tensor) -> Work:
        self.issued += 1
        return self._in_flight(dist.all_reduce(x, group=self.group, async_op=True))

    def maximum(self, x: Tensor) -> Work:
        self.issued += 1
        return self._in_flight(dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group, async_op=True))

    def gather(self, out: Tensor, x: Tensor) -> Work:
        self.issued += 1
        if self.size == 2 <= self._paired_ranks:
            return self._in_flight(self._pairs(out, (x, x)))
        return self._in_flight(_all_gather(out, x, group=self.group, async_op=True))

    def broadcast(self, x: Tensor, root: int) -> Work:
        self.issued += 1
        return self._in_flight(dist.broadcast(x, group=self.group, group_src=root, async_op=True))

    def exchange(self, out: Tensor, x: Tensor) -> Work:
        self.issued += 1
        if self.size <= self._paired_ranks:
            return self._in_flight(self._pairs(out, x.view(self.size, -1)))
        return self._in_flight(dist.all_to_all_single(out, x, group=self.group, async_op=True))

    def scatter_sum(self, out: Tensor, x: Tensor) -> Work:
        self.issued += 1
        return self._in_flight(_reduce_scatter(out, x, group=self.group, async_op=True))

    def _pairs(self, out: Tensor, parts: Sequence[Tensor] | Tensor) -> Work:
        """Send a part to each rank and receive one of each.

        Over gloo's one connection between two ranks, the receiver tells the sender that it is ready. Gloo's own
        collectives send first, so the rank that comes last says so behind its data, and both directions take turns:
        a gather of two ranks takes 1.5 times as long as its bytes, an all-to-all twice. Here, receiving comes first.
        """
        arrived = out.view(self.size, -1)
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        works = [dist.irecv(arrived[rank], group=self.group, group_src=rank) for rank in others]
        works += [dist.isend(parts[rank], group=self.group, group_dst=rank) for rank in others]
        arrived[self.rank].copy_(parts[self.rank])
        return _Together(works)

    def _in_flight(self, work: Work | None) -> Work:
        assert work is not None  # None: this rank is not in the group
        return work


class _Together:
    """Operations that are done when each of them is."""

    def __init__(self, works: list[dist.Work | None]) -> None:
        self._works = works

    def wait(self) -> None:
        # Gloo's single messages, unlike its collectives, would wait for another message the second time.
        while self._works:
            work = self._works[-1]
            assert work is not None  # None: this rank is not in the group
            work.wait()
            self._works.pop()

    def get_future(self) -> torch.futures.Future[Any]:
        self.wait()
        return Done().get_future()


class Done:
    """An operation that is already done."""

    def wait(self) -> None:
        return

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(None)
        return future


class _Alone(Communicator):
    """A world of one rank: its tensor is the sum, the maximum and the gathered whole."""

    rank, size = 0, 1

    def sum(self, x: Tensor) -> Work:
        return Done()

    def broadcast(self, x: Tensor, root: int) -> Work:
        return Done()

    def gather(self, out: Tensor, x: Tensor) -> Work:
        out.copy_(x)
        return Done()

    maximum, exchange, scatter_sum = sum, gather, gather


ALONE: Communicator = _Alone()


def backend_of(group: dist.ProcessGroup, device: str) -> str:
    """Return the backend that a group has for a type of device, such as ``gloo``; empty: it has none.

    ``torch.distributed.get_backend`` returns what the trainer wrote: also ``cpu:gloo,cuda:nccl``, or ``undefined``.
    """
    pairs = (pair.partition(":") for pair in dist.get_backend_config(group).split(","))
    return {kind: backend for kind, _, backend in pairs}.get(device, "")


def communicator(group: dist.ProcessGroup | Communicator) -> Communicator:
    """Return ``group`` as a communicator."""
    return group if isinstance(group, Communicator) else ProcessGroupCommunicator(group)
