"""What the exchange needs of an accelerator. Every ordering of work between streams goes through here.

Work on one stream runs in order. Work on two streams runs in any order, except where ``wait_stream``, an event or a
future orders it. The host runs ahead of all of them and waits only where it says so.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from gravac.collectives import Work
from gravac.wording import format_seconds
from gravac_agent.errors import PeerError

Stream = Any
"""A queue of work on a device: ``torch.cuda.Stream``, or a simulated one."""


REPORT_SECONDS = 30.0
"""Time to name a lost rank, to close the agent and to write the journal, before NCCL's watchdog ends the process."""
_LONGEST_PAUSE = 0.001


class DeviceEvent(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool:
        """Return whether the device has reached it."""


class Device(ABC):
    """One accelerator of this process.

    Attributes:
        device: Device on which its tensors are.
        patience: Seconds that the host waits for the device.
    """

    device: torch.device
    patience: float

    @property
    def late(self) -> str:
        """What to say of work that takes longer than the patience."""
        return (
            f"has not ended within {format_seconds(self.patience)}: what another rank sends is missing, because it "
            "ended, hangs or works on something else"
        )

    def give_up_before(self, seconds: float) -> None:
        """Set the patience to less than a timeout of the collectives, at which NCCL's watchdog ends the process."""
        self.patience = max(seconds / 2, seconds - REPORT_SECONDS)

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of its model."""

    @abstractmethod
    def new_stream(self) -> Stream:
        """Make a stream."""

    @abstractmethod
    def current_stream(self) -> Stream:
        """Return the stream that the calling thread queues its work on."""

    @abstractmethod
    def run(self, stream: Stream, work: Callable[[], None]) -> None:
        """Call ``work`` with ``stream`` as the current one, so that what it queues, and a future that it completes,
        belong to that stream.

        Args:
            stream: The stream.
            work: It must not raise.
        """

    @abstractmethod
    def wait_stream(self, waiting: Stream, awaited: Stream) -> None:
        """Let work queued on ``waiting`` from now on begin after all work queued on ``awaited`` so far."""

    @abstractmethod
    def record_stream(self, tensor: Tensor, stream: Stream) -> None:
        """Keep the memory of ``tensor`` after it is freed until ``stream`` has done what is queued by then."""

    @abstractmethod
    def record_event(self, stream: Stream) -> DeviceEvent:
        """Return an event at the end of what is queued on ``stream``."""

    @abstractmethod
    def wait_work(self, work: Work) -> None:
        """Let the current stream wait for a collective. With gloo the host waits, because gloo's copies go through it.

        Raises:
            Exception: What the collective raised.
        """

    def wait_event(self, event: DeviceEvent, what: str) -> None:
        """Wait on the host until the device has reached an event.

        Args:
            event: The event.
            what: What has ended then, for the message.

        Raises:
            PeerError: It has not within ``patience``.
        """
        began = time.monotonic()
        while not event.query():  # CUDA's own wait would have no end if another rank is gone
            waited = time.monotonic() - began
            if waited > self.patience:
                raise PeerError(f"{what} {self.late}")
            time.sleep(min(_LONGEST_PAUSE, waited / 16))

    def synchronize(self, stream: Stream) -> None:
        """Wait on the host for all that is queued on ``stream``. Raises as ``wait_event`` does."""
        self.wait_event(self.record_event(stream), "what is queued on the device")

    @abstractmethod
    def future(self) -> torch.futures.Future[Tensor]:
        """Return a future for a tensor of this device.

        Work that waits for it runs after the work of the stream on which it was completed.
        """

    @abstractmethod
    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        """Return host memory that the device can copy to and from while the host goes on, shape ``(size,)``."""

    @abstractmethod
    def timer(self) -> "Timer":
        """Return a timer of what one stream does."""

    @abstractmethod
    def delay(self, seconds: float) -> None:
        """Keep the current stream busy for a time."""

    @abstractmethod
    def is_capturing(self) -> bool:
        """Return whether the current stream records its work into a graph instead of doing it."""

    def refuse_capture(self) -> None:
        """Refuse to run while work is recorded. Call it before anything else of a backward, which would query events.

        Raises:
            RuntimeError: The current stream records its work into a graph.
        """
        if self.is_capturing():
            raise RuntimeError(
                "backward is captured in a CUDA graph, which would send at this step's compression factor forever: "
                "capture less than backward, or train without CUDA graphs"
            )


class Timer(ABC):
    """Times what a stream does between marks, without waiting for it."""

    @abstractmethod
    def mark(self, stream: Stream) -> int:
        """Take the time at which ``stream`` gets here, and return the mark's number, from 0."""

    @abstractmethod
    def seconds(self, number: int) -> float:
        """Return the seconds from mark 0 to another mark. The stream must have reached both."""

    @abstractmethod
    def restart(self) -> None:
        """Forget all marks, which must have been read or be of no interest."""
