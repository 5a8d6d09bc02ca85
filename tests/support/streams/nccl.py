"""Collectives between simulated devices."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gravac.collectives import Communicator, Work
from tests.support.streams.device import SimulatedDevice, SimulatedStream, poison
from tests.support.streams.turns import Turns


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
    """Where the ranks' collectives meet: the first of one rank with the first of the others, and so on.

    Args:
        size: Number of ranks.
        turns: Their turns.
    """

    def __init__(self, size: int, turns: Turns) -> None:
        self.size, self.turns = size, turns
        self._inputs: dict[int, dict[int, Tensor]] = defaultdict(dict)
        self._left: dict[int, int] = defaultdict(lambda: size)

    def join(self, number: int, rank: int, x: Tensor) -> None:
        self._inputs[number][rank] = x.clone()
        self.turns.help()

    def complete(self, number: int) -> bool:
        return len(self._inputs[number]) == self.size

    def inputs(self, number: int) -> list[Tensor]:
        """Return every rank's tensor. Each rank calls it once."""
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
        self.issued = 0

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
        device, meetings, number = self._device, self._meetings, self.issued
        assert device.running is not None, "a collective was issued outside of a stream's work"
        self.issued += 1
        if out is not x:
            poison(out)
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
