"""A device with streams, simulated on the host's memory.

Work that is given to a stream is queued. It runs later, piece by piece, in any order that the declared dependencies
allow: the order on one stream, ``wait_stream``, events, futures and collectives. Between two calls of the host the
scheduler runs a few pieces, or none. What the host reads without waiting for it is therefore old, nearly always.

Memory behaves as in CUDA's caching allocator. A tensor that was freed gives its memory to the next one of the same
size and stream, at once, unless ``record_stream`` named a stream whose queued work is not done.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gravac.collectives import Work
from gravac_agent.devices.base import Device, Timer
from tests.support.streams.turns import Turns

POISON = float("nan")
_MOST_AT_ONCE = 4
"""Pieces that run, at most, between two calls of the host."""
_CHANGED = 0.1
"""How often a stream gets another priority."""


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
    priority: float = 0.0

    def __repr__(self) -> str:
        return self.name


class SimulatedEvent:
    """A point of a stream."""

    def __init__(self, device: "SimulatedDevice", stream: SimulatedStream) -> None:
        self._device, self._stream, self._at = device, stream, stream.queued

    def reached(self) -> bool:
        return self._stream.done >= self._at

    def query(self) -> bool:
        assert not self._device.capturing, "CUDA does not let events be queried while work is captured"
        self._device.advance()
        return self.reached()


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
        turns: Turns of the ranks. None: no other rank is simulated.
        rank: This rank.
    """

    name = "simulated"

    def __init__(self, seed: int | None, turns: Turns | None = None, rank: int = 0) -> None:
        self._turns, self._rank = turns, rank
        self.device, self.patience = torch.device("cpu"), 60.0
        self._random = None if seed is None else random.Random(seed)
        self.main = SimulatedStream("main")
        self.transfers: list[SimulatedStream] = []
        """A stream for each collective in flight, since they may end in any order."""
        self._streams = [self.main]
        self._current = self.main
        self.running: SimulatedStream | None = None
        self._free: dict[tuple[int, torch.dtype, int], list[Tensor]] = defaultdict(list)
        self._waiting: list[tuple[Tensor, int, list[Callable[[], bool]]]] = []
        self._owners: dict[int, SimulatedStream] = {}
        self._recorded: dict[int, list[SimulatedStream]] = defaultdict(list)
        self.capturing = False
        """Whether work is recorded into a graph."""
        self.history: list[str] = []
        """Names of streams, in the order in which their pieces ran."""

    # -- the device's interface -------------------------------------------------------------------------------

    def new_stream(self) -> SimulatedStream:
        stream = SimulatedStream(f"stream {len(self._streams)}")
        self._streams.append(stream)
        return stream

    def current_stream(self) -> SimulatedStream:
        return self._current if self.running is None else self.running

    @contextmanager
    def on(self, stream: SimulatedStream) -> Iterator[None]:
        """Make a stream the one that the host queues its work on."""
        before, self._current = self._current, stream
        yield
        self._current = before

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

    def future(self) -> Any:
        return SimulatedFuture(self)

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        memory = torch.empty(size, dtype=dtype)
        poison(memory)
        return memory

    def timer(self) -> "_Timer":
        return _Timer(self)

    def delay(self, seconds: float) -> None:
        return

    def is_capturing(self) -> bool:
        return self.capturing

    # -- memory -----------------------------------------------------------------------------------------------

    def allocate(self, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return memory of the current stream, as it was left by the one who had it before."""
        self._collect()
        pool = self._free[size, dtype, id(self._current)]
        tensor = pool.pop() if pool else torch.full((size,), POISON, dtype=dtype)
        self._owners[tensor.data_ptr()] = self._current
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
                self._free[tensor.numel(), tensor.dtype, owner].append(tensor)
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
        idle = False
        for _ in range(self._random.choice((0, 0, 0, 1, 2, _MOST_AT_ONCE))):
            if not self._run_one():
                idle = True
                break
        if self._turns is not None:
            self._turns.offer(self._rank, idle=idle)

    def run_until(self, condition: Callable[[], bool], awaited: SimulatedStream | None = None) -> None:
        """Run pieces until ``condition()``; of one transfer only, where it is ``awaited`` within a piece, besides the
        beginnings of others. Raises Deadlock where other ranks cannot help."""
        while not condition():
            if self._run_one(awaited):
                continue
            turns = self._turns
            if turns is None or turns.failed or not (self.transfers and turns.wait(self._rank)):
                raise Deadlock(f"nothing can run on {[stream for stream in self._streams if stream.pieces]}")

    def drain(self) -> None:
        """Run all that is queued."""
        self.run_until(lambda: not any(stream.pieces for stream in (*self._streams, *self.transfers)))

    def _choice(self, able: list[SimulatedStream]) -> SimulatedStream:
        """Choose a stream, by priorities that are random and change now and then, so that any few of the streams may
        be far behind the others at the same time (Burckhardt et al. 2010, A randomized scheduler with probabilistic
        guarantees of finding bugs)."""
        assert self._random is not None
        for stream in able:
            stream.priority = stream.priority or self._random.random()
        if self._random.random() < _CHANGED:
            self._random.choice(able).priority = self._random.random()
        return max(able, key=lambda one: one.priority)

    def _run_one(self, awaited: SimulatedStream | None = None) -> bool:
        streams = (*self._streams, *self.transfers)
        if awaited is not None:
            streams = tuple(
                transfer for transfer in self.transfers if transfer is awaited or not transfer.done
            )
        able = [stream for stream in streams if stream.pieces and stream.pieces[0].ready()]
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
            self.history.append(stream.name)
            if not stream.pieces and stream in self.transfers:
                self.transfers.remove(stream)
        return True


class _Timer(Timer):
    """Counts pieces of work, a millisecond each."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._marks: list[int] = []

    def mark(self, stream: SimulatedStream) -> int:
        self._marks.append(len(self._device.history))
        return len(self._marks) - 1

    def seconds(self, number: int) -> float:
        return (self._marks[number] - self._marks[0]) / 1000.0

    def restart(self) -> None:
        self._marks = []


def poison(out: Tensor) -> None:
    """Fill memory that nothing was written to with what shows in any result."""
    out.fill_(POISON if out.is_floating_point() else torch.iinfo(out.dtype).max)
