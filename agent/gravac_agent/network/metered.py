"""A process group that notes how long the exchange thread waited for other ranks inside an aggregation."""

import threading
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives import ProcessGroupCommunicator, Work


class Metered(ProcessGroupCommunicator):
    """For aggregations of several rounds: waiting for a round is communication, not compression."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self._waits: list[tuple[float, float]] = []

    def take(self) -> list[tuple[float, float]]:
        """Waits since the last call, monotonic seconds (begun, ended)."""
        waits, self._waits = self._waits, []
        return waits

    def sum(self, x: Tensor) -> Work:
        return _Watched(super().sum(x), self._waits)

    def maximum(self, x: Tensor) -> Work:
        return _Watched(super().maximum(x), self._waits)

    def gather(self, out: Tensor, x: Tensor) -> Work:
        return _Watched(super().gather(out, x), self._waits)

    def broadcast(self, x: Tensor, root: int) -> Work:
        return _Watched(super().broadcast(x, root), self._waits)

    def exchange(self, out: Tensor, x: Tensor) -> Work:
        return _Watched(super().exchange(out, x), self._waits)


@dataclass(slots=True)
class _Watched:
    work: Work
    waits: list[tuple[float, float]]
    thread: int = 0

    def __post_init__(self) -> None:
        self.thread = threading.get_ident()

    def wait(self) -> Any:
        if (
            threading.get_ident() != self.thread
        ):  # the thread that only waits; not on the exchange thread's time
            return self.work.wait()
        begun = time.monotonic()
        result = self.work.wait()
        self.waits.append((begun, time.monotonic()))
        return result

    def get_future(self) -> torch.futures.Future[Any]:
        return self.work.get_future()
