"""A world of ranks in one process, one thread each: for tests and simulations, without a network."""

import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from gravac.collectives.communicator import Communicator, Done, Work

T = TypeVar("T")


class SimulatedWorld:
    """``run`` calls a function once per rank, all at the same time; operations meet in the order they are issued.

    Sums go over ranks in rank order, so results do not depend on which thread is faster.
    """

    def __init__(self, size: int, timeout_seconds: float = 60.0) -> None:
        if size < 1:
            raise ValueError(f"size={size} must be at least 1 rank")
        self.size = size
        self._barrier = threading.Barrier(size, timeout=timeout_seconds)
        self._slots: list[Tensor] = [torch.empty(0, dtype=torch.float32, device="cpu")] * size

    def run(self, each: Callable[[Communicator], T]) -> list[T]:
        """Return what ``each(communicator)`` returned on every rank. Raise the first error of any."""
        results: dict[int, T] = {}
        errors: dict[int, BaseException] = {}

        def body(rank: int) -> None:
            try:
                results[rank] = each(self.communicator(rank))
            except BaseException as error:
                errors[rank] = error
                self._barrier.abort()

        threads = [threading.Thread(target=body, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._barrier.reset()
        real = [error for error in errors.values() if not isinstance(error, threading.BrokenBarrierError)]
        for error in real or errors.values():
            raise error
        return [results[rank] for rank in range(self.size)]

    def communicator(self, rank: int) -> Communicator:
        """Return one rank's end, whose operations wait until every rank issues theirs."""
        return _Simulated(self, rank)

    def meet(self, rank: int, x: Tensor, combine: Callable[[list[Tensor]], Tensor], out: Tensor) -> None:
        """Write to ``out`` what ``combine`` makes of the ``x`` of all ranks. Every rank calls it."""
        self._slots[rank] = x
        self._barrier.wait()
        combined = combine(self._slots)
        self._barrier.wait()  # no rank overwrites an input that another still reads
        out.copy_(combined)


class _Simulated(Communicator):
    def __init__(self, world: SimulatedWorld, rank: int) -> None:
        self._world, self.rank, self.size = world, rank, world.size

    def sum(self, x: Tensor) -> Work:
        return self._meet(x, _sum, x)

    def maximum(self, x: Tensor) -> Work:
        return self._meet(x, lambda all_: torch.stack(all_).amax(0), x)

    def gather(self, out: Tensor, x: Tensor) -> Work:
        return self._meet(x, torch.cat, out)

    def broadcast(self, x: Tensor, root: int) -> Work:
        return self._meet(x, lambda all_: all_[root].clone(), x)

    def exchange(self, out: Tensor, x: Tensor) -> Work:
        def for_me(all_: list[Tensor]) -> Tensor:
            return torch.cat([one.chunk(self.size)[self.rank] for one in all_])

        return self._meet(x, for_me, out)

    def scatter_sum(self, out: Tensor, x: Tensor) -> Work:
        def for_me(all_: list[Tensor]) -> Tensor:
            return _sum([one.chunk(self.size)[self.rank] for one in all_])

        return self._meet(x, for_me, out)

    def _meet(self, x: Tensor, combine: Callable[[list[Tensor]], Tensor], out: Tensor) -> Work:
        self.issued += 1
        self._world.meet(self.rank, x, combine, out)
        return Done()


def _sum(all_: list[Tensor]) -> Tensor:
    total = all_[0].clone()
    for one in all_[1:]:
        total += one
    return total
