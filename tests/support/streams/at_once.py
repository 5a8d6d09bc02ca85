"""A device whose streams run everything at once, so that real DDP modules and process groups can be used with it."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gravac.collectives import ProcessGroupCommunicator, Work
from gravac.kernels import treated_as_device
from gravac_agent.setup import agree, build
from tests.support.streams.device import SimulatedDevice, SimulatedStream


class AtOnce(SimulatedDevice):
    """Takes the host's tensors for a device's. DDP waits for its futures as it does on the host."""

    def __init__(self) -> None:
        super().__init__(None)

    def run(self, stream: SimulatedStream, work: Callable[[], None]) -> None:
        before, self.running = self.running, stream
        try:
            work()
        finally:
            self.running = before

    def record_stream(self, tensor: Tensor, stream: SimulatedStream) -> None:
        return  # also of a sparse tensor, which has no address

    def wait_work(self, work: Work) -> None:
        work.wait()

    def future(self) -> torch.futures.Future[Tensor]:
        return torch.futures.Future()


class Hanging(AtOnce):
    """Its streams hang at a collective that a rank does not join, and the host goes on, as with NCCL."""

    JOINED_SECONDS = 3.0
    """Longest wait for a rank that joins."""

    def __init__(self) -> None:
        super().__init__()
        self._hangs = False

    def wait_work(self, work: Any) -> None:
        until = time.monotonic() + self.JOINED_SECONDS
        while not (self._hangs or work.is_completed()):
            self._hangs = time.monotonic() > until
            time.sleep(0.001)

    def query(self) -> bool:
        """As an event of any of its streams."""
        return not self._hangs

    def record_event(self, stream: SimulatedStream) -> Any:
        return self


@contextmanager
def streams_for_agents(kind: type[AtOnce] = AtOnce, whole: bool = False) -> Iterator[None]:
    """Agents that start in here use streams, and the device's code of all codecs.

    Args:
        kind: Of the device.
        whole: Whether plans that a device sends in whole messages are sent so.
    """
    messages: Any = sys.modules[ProcessGroupCommunicator.__module__]
    chosen, asked, paired = agree.device_of, build.gpu_kernels, messages._PAIRED_RANKS
    agree.device_of = lambda device: kind()
    messages._PAIRED_RANKS = 0  # on a GPU each exchange is one collective, which knows whether it has ended
    if whole:
        build.gpu_kernels = lambda device: True
    try:
        with treated_as_device():
            yield
    finally:
        agree.device_of, build.gpu_kernels = chosen, asked
        messages._PAIRED_RANKS = paired
