"""A process group that records how long the exchange thread waits for other ranks inside an aggregation."""

import threading
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives import ProcessGroupCommunicator, Work


class Metered(ProcessGroupCommunicator):
    """Counts waiting for a round of an aggregation as communication, not as compression."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self._waits: list[tuple[float, float]] = []

    def pop_waits(self) -> list[tuple[float, float]]:
        """Return the waits since the last call: when each began and ended, in monotonic seconds."""
        waits, self._waits = self._waits, []
        return waits

    def sum(self, x: Tensor) -> Work:
        return _MeteredWork(super().sum(x), self._waits)

    def maximum(self, x: Tensor) -> Work:
        return _MeteredWork(super().maximum(x), self._waits)

    def gather(self, out: Tensor, x: Tensor) -> Work:
        return _MeteredWork(super().gather(out, x), self._waits)

    def broadcast(self, x: Tensor, root: int) -> Work:
        return _MeteredWork(super().broadcast(x, root), self._waits)

    def exchange(self, out: Tensor, x: Tensor) -> Work:
        return _MeteredWork(super().exchange(out, x), self._waits)

    def scatter_sum(self, out: Tensor, x: Tensor) -> Work:
        return _MeteredWork(super().scatter_sum(out, x), self._waits)


@dataclass(slots=True)
class _MeteredWork:
    work: Work
    waits: list[tuple[float, float]]
    thread: int = 0

    def __post_init__(self) -> None:
        self.thread = threading.get_ident()

    def wait(self) -> Any:
        if threading.get_ident() != self.thread:  # the exchange thread does not wait
            return self.work.wait()
        began = time.monotonic()
        result = self.work.wait()
        self.waits.append((began, time.monotonic()))
        return result

    def get_future(self) -> torch.futures.Future[Any]:
        return self.work.get_future()
