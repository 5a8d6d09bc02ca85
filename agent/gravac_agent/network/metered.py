"""A process group that records how long the exchange thread waits for other ranks inside an aggregation."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

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

    def _in_flight(self, work: Work | None) -> Work:
        return _MeteredWork(super()._in_flight(work), self._waits)


@dataclass(slots=True)
class _MeteredWork:
    work: Work
    waits: list[tuple[float, float]]
    thread: int = field(default_factory=threading.get_ident)

    def wait(self) -> Any:
        if threading.get_ident() != self.thread:  # the exchange thread does not wait
            return self.work.wait()
        began = time.monotonic()
        result = self.work.wait()
        self.waits.append((began, time.monotonic()))
        return result

    def get_future(self) -> torch.futures.Future[Any]:
        return self.work.get_future()
