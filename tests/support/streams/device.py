"""A device with streams, simulated on the host's memory.

Work that is given to a stream is queued. It runs later, piece by piece, in any order that the declared dependencies
allow: the order on one stream, ``wait_stream``, events, futures and collectives. Between two calls of the host the
scheduler runs a few pieces, or none. What the host reads without waiting for it is therefore old, nearly always.

Memory behaves as in CUDA's caching allocator. A tensor that was freed gives its memory to the next one of the same
size and stream, at once, unless ``record_stream`` named a stream whose queued work is not done.
"""

import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gravac.collectives import Communicator, Work
from gravac_agent.devices.base import Device, Timer

POISON = float("nan")
PATIENCE_SECONDS = 20.0
_MOST_AT_ONCE = 4
"""Pieces that run, at most, between two calls of the host."""


class Deadlock(Exception):
    """Work is queued, and none of it can ever run."""


@dataclass(slots=True)
class _Piece:
    work: Callable[[], None] | None
    ready: Callable[[], bool]


@dataclass(slots=True, eq=False)
class SimulatedStream:
    """A queue. ``done`` of the ``queued`` pieces have run."""

    name: str
    pieces: deque[_Piece] = field(default_factory=deque)
    queued: int = 0
    done: int = 0

    def __repr__(self) -> str:
        return self.name


class SimulatedEvent:
    """A point of a stream."""

    def __init__(self, device: "SimulatedDevice", stream: SimulatedStream) -> None:
        self._device, self._stream, self._at = device, stream, stream.queued

    def reached(self) -> bool:
        return self._stream.done >= self._at

    def query(self) -> bool:
        self._device.advance()
        return self.reached()

    def synchronize(self) -> None:
        self._device.run_until(self.reached)


class SimulatedFuture:
    """As ``torch.futures.Future``: completed where ``set_result`` is called, on the stream that is current there."""

    def __init__(self, device: "SimulatedDevice") -> None:
        self._device = device
        self._event: Callable[[], bool] | None = None
        self._value: Tensor | None = None

    def done(self) -> bool:
        return self._event is not None

    def set_result(self, value: Tensor) -> None:
        assert not self.done(), "a future is completed once"
        self._value = value
        # In a piece, what it did before is done; outside of one, the work that is queued may not be.
        self._event = (
            (lambda: True) if self._device.running is not None else self._device.end_of(self._device.main)
        )

    def reached(self) -> bool:
        return self._event is not None and self._event()

    def wait(self) -> Tensor | None:
        """Let the main stream wait for the value, as DDP does at the end of backward."""
        self._device.queue(self._device.main, None, self.reached)
        return self._value


class SimulatedDevice(Device):
    """One rank's device. All of its methods are called on that rank's thread.

    Args:
        seed: Seed of the scheduler. None runs each piece as soon as it can.
        failed: Whether another rank has failed, so that it will join no collective.
    """

    def __init__(self, seed: int | None, failed: Callable[[], bool] = lambda: False) -> None:
        self._failed = failed
        self.device = torch.device("cpu")
        self._random = None if seed is None else random.Random(seed)
        self.main = SimulatedStream("main")
        self.transfers: list[SimulatedStream] = []
        """A stream for each collective in flight, since they may end in any order."""
        self._streams = [self.main]
        self._current = self.main
        self._slow: SimulatedStream | None = None
        self.running: SimulatedStream | None = None
        self._free: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        self._waiting: list[tuple[Tensor, int, list[Callable[[], bool]]]] = []
        self._owners: dict[int, SimulatedStream] = {}
        self._recorded: dict[int, list[SimulatedStream]] = defaultdict(list)
        self.pieces_run = 0

    # -- the device's interface -------------------------------------------------------------------------------

    def new_stream(self) -> SimulatedStream:
        stream = SimulatedStream(f"stream {len(self._streams)}")
        self._streams.append(stream)
        return stream

    def current_stream(self) -> SimulatedStream:
        return self._current if self.running is None else self.running

    def run(self, stream: SimulatedStream, work: Callable[[], None]) -> None:
        assert self.running is None, "a piece of work queues another one: call run from the host"
        self.queue(stream, work, lambda: True)
        self.advance()

    def wait_stream(self, waiting: SimulatedStream, awaited: SimulatedStream) -> None:
        self.queue(waiting, None, self.end_of(awaited))
        self.advance()

    def record_stream(self, tensor: Tensor, stream: SimulatedStream) -> None:
        self._recorded[tensor.data_ptr()].append(stream)
        for freed, _, conditions in self._waiting:  # by work that was queued before, and ran later here
            if freed.data_ptr() == tensor.data_ptr():
                conditions.append(self.end_of(stream))

    def record_event(self, stream: SimulatedStream) -> SimulatedEvent:
        return SimulatedEvent(self, stream)

    def wait_work(self, work: Work) -> None:
        work.wait()

    def synchronize(self, stream: SimulatedStream) -> None:
        self.run_until(self.end_of(stream))

    def future(self) -> Any:
        return SimulatedFuture(self)

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        memory = torch.empty(size, dtype=dtype)
        _poison(memory)
        return memory

    def timer(self) -> "_Timer":
        return _Timer(self)

    def delay(self, seconds: float) -> None:
        return

    def is_capturing(self) -> bool:
        return False

    # -- memory -----------------------------------------------------------------------------------------------

    def allocate(self, size: int) -> Tensor:
        """Return memory of the main stream, as it was left by the one who had it before."""
        self._collect()
        pool = self._free[size, id(self.main)]
        tensor = pool.pop() if pool else torch.full((size,), POISON)
        self._owners[tensor.data_ptr()] = self.main
        self._recorded.pop(tensor.data_ptr(), None)
        return tensor

    def free(self, tensor: Tensor) -> None:
        """Give memory back, as the host does when it drops its last reference. Work that uses it may be queued."""
        streams = self._recorded.pop(tensor.data_ptr(), [])
        owner = self._owners.pop(tensor.data_ptr())
        self._waiting.append((tensor, id(owner), [self.end_of(stream) for stream in streams]))

    def _collect(self) -> None:
        waiting, self._waiting = self._waiting, []
        for tensor, owner, conditions in waiting:
            if all(condition() for condition in conditions):
                self._free[tensor.numel(), owner].append(tensor)
            else:
                self._waiting.append((tensor, owner, conditions))

    # -- the scheduler ----------------------------------------------------------------------------------------

    def queue(
        self, stream: SimulatedStream, work: Callable[[], None] | None, ready: Callable[[], bool]
    ) -> None:
        """Queue a piece that may run once ``ready()`` and all before it on the stream have run."""
        stream.pieces.append(_Piece(work, ready))
        stream.queued += 1

    def end_of(self, stream: SimulatedStream) -> Callable[[], bool]:
        """Return the condition that all that is queued on ``stream`` by now has run."""
        at = stream.queued
        return lambda: stream.done >= at

    def advance(self) -> None:
        """Run a few pieces, or none: what the device does while the host does something else."""
        if self.running is not None:
            return
        if self._random is None:
            while self._run_one():
                pass
            return
        for _ in range(self._random.choice((0, 0, 0, 1, 2, _MOST_AT_ONCE))):
            if not self._run_one():
                return

    def run_until(self, condition: Callable[[], bool], awaited: SimulatedStream | None = None) -> None:
        """Run pieces until ``condition()``; of one transfer only, where it is ``awaited`` within a piece, besides the
        beginnings of others. Raises Deadlock where other ranks cannot help."""
        patience = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if self._run_one(awaited):
                continue
            if self._failed() or time.monotonic() > patience or not self.transfers:
                raise Deadlock(f"nothing can run on {[one for one in self._streams if one.pieces]}")
            time.sleep(0.0)  # another rank has to join a collective

    def drain(self) -> None:
        """Run all that is queued."""
        self.run_until(lambda: not any(stream.pieces for stream in (*self._streams, *self.transfers)))

    def _choice(self, able: list[SimulatedStream]) -> SimulatedStream:
        """Choose a stream. For a while one of them is slow, so that the others get far ahead."""
        assert self._random is not None
        if self._random.random() < 0.05:
            self._slow = self._random.choice(able)
        if self._random.random() < 0.9:
            able = [one for one in able if one is not self._slow] or able
        return self._random.choice(able)

    def _run_one(self, awaited: SimulatedStream | None = None) -> bool:
        streams = (*self._streams, *self.transfers)
        if awaited is not None:
            streams = tuple(one for one in self.transfers if one is awaited or not one.done)
        able = [one for one in streams if one.pieces and one.pieces[0].ready()]
        if not able:
            return False
        stream = able[0] if self._random is None or len(able) == 1 else self._choice(able)
        piece = stream.pieces.popleft()
        before, self.running = self.running, stream
        try:
            if piece.work is not None:
                piece.work()
        finally:
            self.running = before
            stream.done += 1
            self.pieces_run += 1
            if not stream.pieces and stream in self.transfers:
                self.transfers.remove(stream)
        return True


class _Timer(Timer):
    """Counts pieces of work, a millisecond each."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._marks: list[int] = []

    def mark(self, stream: SimulatedStream) -> int:
        self._marks.append(self._device.pieces_run)
        return len(self._marks) - 1

    def seconds(self, number: int) -> float:
        return (self._marks[number] - self._marks[0]) / 1000.0

    def restart(self) -> None:
        self._marks = []


@dataclass(slots=True)
class _QueuedWork:
    device: SimulatedDevice
    stream: SimulatedStream

    def wait(self) -> None:
        """Let the current stream wait: nothing that follows on it runs before the collective has."""
        self.device.run_until(self.device.end_of(self.stream), self.stream)

    def get_future(self) -> Any:
        raise AssertionError("the exchange waits with wait()")


class Meetings:
    """Where the ranks' collectives meet: the first of one rank with the first of the others, and so on."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.failed = False
        self._lock = threading.Lock()
        self._inputs: dict[int, dict[int, Tensor]] = defaultdict(dict)
        self._left: dict[int, int] = defaultdict(lambda: size)

    def join(self, number: int, rank: int, x: Tensor) -> None:
        with self._lock:
            self._inputs[number][rank] = x.clone()

    def complete(self, number: int) -> bool:
        return len(self._inputs[number]) == self.size

    def inputs(self, number: int) -> list[Tensor]:
        """Return every rank's tensor. Each rank calls it once."""
        with self._lock:
            found = [self._inputs[number][rank] for rank in range(self.size)]
            self._left[number] -= 1
            if not self._left[number]:
                del self._left[number], self._inputs[number]
        return found


class SimulatedNccl(Communicator):
    """Collectives on streams of their own, after what the stream that issued them has done. They end in any order.

    Inputs are read and outputs written any time between then and the wait for it; until then outputs are poison.

    Args:
        device: This rank's device.
        meetings: Where the ranks meet.
        rank: This rank.
    """

    def __init__(self, device: SimulatedDevice, meetings: Meetings, rank: int) -> None:
        self._device, self._meetings = device, meetings
        self.rank, self.size = rank, meetings.size
        self._issued = 0

    def sum(self, x: Tensor) -> Work:
        return self._queue(x, x, _sum)

    def maximum(self, x: Tensor) -> Work:
        return self._queue(x, x, lambda every: torch.stack(every).amax(0))

    def gather(self, out: Tensor, x: Tensor) -> Work:
        return self._queue(out, x, torch.cat)

    def broadcast(self, x: Tensor, root: int) -> Work:
        return self._queue(x, x, lambda every: every[root])

    def exchange(self, out: Tensor, x: Tensor) -> Work:
        return self._queue(out, x, lambda every: torch.cat([self._part(one) for one in every]))

    def scatter_sum(self, out: Tensor, x: Tensor) -> Work:
        return self._queue(out, x, lambda every: _sum([self._part(one) for one in every]))

    def pop_waits(self) -> list[tuple[float, float]]:
        """As ``Metered``: the host never waits."""
        return []

    def _part(self, x: Tensor) -> Tensor:
        return x.chunk(self.size)[self.rank]

    def _queue(self, out: Tensor, x: Tensor, combine: Callable[[list[Tensor]], Tensor]) -> Work:
        device, meetings, number = self._device, self._meetings, self._issued
        assert device.running is not None, "a collective was issued outside of a stream's work"
        self._issued += 1
        if out is not x:
            _poison(out)
        stream = SimulatedStream(f"collective {number}")
        device.transfers.append(stream)
        device.queue(stream, lambda: meetings.join(number, self.rank, x), lambda: True)
        device.queue(
            stream,
            lambda: _write(out, combine(meetings.inputs(number))),
            lambda: meetings.complete(number),
        )
        for tensor in (x, out):  # as NCCL's process group does it
            device.record_stream(tensor, stream)
        return _QueuedWork(device, stream)


def _sum(every: list[Tensor]) -> Tensor:
    total = every[0].clone()
    for one in every[1:]:
        total += one
    return total


def _write(out: Tensor, value: Tensor) -> None:
    out.copy_(value)


def _poison(out: Tensor) -> None:
    out.fill_(POISON if out.is_floating_point() else torch.iinfo(out.dtype).max)
