"""CUDA's streams and events."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gravac.collectives import Work
from gravac_agent.devices.base import Device, DeviceEvent, Stream, Timer

_PROBE_CYCLES = 10_000_000
"""Cycles that the calibration of ``delay`` takes: a few milliseconds."""
_LONGEST_CYCLES = 2**62


def made_current(device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which a GPU is the current one, as not every trainer calls ``torch.cuda.set_device``."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class CudaDevice(Device):
    """A CUDA GPU.

    Args:
        device: With an index, such as ``cuda:0``.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._cycles_per_second: float | None = None

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.device)

    def new_stream(self) -> Stream:
        return torch.cuda.Stream(self.device)

    def current_stream(self) -> Stream:
        return torch.cuda.current_stream(self.device)

    def run(self, stream: Stream, work: Callable[[], None]) -> None:
        with torch.cuda.stream(stream):
            work()

    def wait_stream(self, waiting: Stream, awaited: Stream) -> None:
        waiting.wait_stream(awaited)

    def record_stream(self, tensor: Tensor, stream: Stream) -> None:
        for part in (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,):
            part.record_stream(stream)

    def record_event(self, stream: Stream) -> DeviceEvent:
        event: DeviceEvent = stream.record_event()
        return event

    def wait_work(self, work: Work) -> None:
        work.wait()

    def future(self) -> torch.futures.Future[Tensor]:
        return torch.futures.Future(devices=[self.device])

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        with made_current(self.device):
            return torch.zeros(size, dtype=dtype, device="cpu", pin_memory=True)

    def timer(self) -> "CudaTimer":
        return CudaTimer()

    def delay(self, seconds: float) -> None:
        """Keep the current stream busy. The first call measures the clock, and waits for the GPU."""
        with made_current(self.device):
            if self._cycles_per_second is None:
                self._cycles_per_second = self._measured_clock()
            torch.cuda._sleep(min(_LONGEST_CYCLES, max(1, int(seconds * self._cycles_per_second))))

    def is_capturing(self) -> bool:
        with made_current(self.device):
            return torch.cuda.is_current_stream_capturing()

    def _measured_clock(self) -> float:
        torch.cuda._sleep(_PROBE_CYCLES)  # the first launch loads the kernel
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(_PROBE_CYCLES)
        end.record()
        end.synchronize()
        seconds = float(begin.elapsed_time(end)) / 1000.0
        return _PROBE_CYCLES / seconds


class CudaTimer(Timer):
    """Events that are used again in each step."""

    def __init__(self) -> None:
        self._events: list[Any] = []
        self._used = 0

    def mark(self, stream: Stream) -> int:
        if self._used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))
        self._events[self._used].record(stream)
        self._used += 1
        return self._used - 1

    def seconds(self, number: int) -> float:
        milliseconds: float = self._events[0].elapsed_time(self._events[number])
        return milliseconds / 1000.0

    def restart(self) -> None:
        self._used = 0
