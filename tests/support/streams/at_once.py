"""A device whose streams run everything at once, so that real DDP modules and process groups can be used with it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from gravac.collectives import Work
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

    def wait_work(self, work: Work) -> None:
        work.wait()

    def future(self) -> torch.futures.Future[Tensor]:
        return torch.futures.Future()


@contextmanager
def streams_for_agents(kind: type[AtOnce] = AtOnce, whole: bool = False) -> Iterator[None]:
    """Agents that start in here use streams, and the device's code of all codecs.

    Args:
        kind: Of the device.
        whole: Whether plans that a device sends in whole messages are sent so.
    """
    chosen, asked = agree.device_of, build.gpu_kernels
    agree.device_of = lambda device: kind()
    if whole:
        build.gpu_kernels = lambda device: True
    try:
        with treated_as_device():
            yield
    finally:
        agree.device_of, build.gpu_kernels = chosen, asked
