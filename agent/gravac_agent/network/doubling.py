"""Sums and maxima of small tensors by recursive doubling: a rank's messages grow with log2 of the ranks.

gloo's own all-reduce is a ring, in which each rank sends 2 (n-1) messages, each after the one before has come. That is
right for gradients, of which a ring sends the fewest bytes. Of a tick, only the messages take time.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives import Done, ProcessGroupCommunicator, Work
from gravac.collectives.cost import RING_RANKS

_TAG = 0x67726176
"""Tag of its messages. The trainer's own in the group have other tags."""


class Doubling(ProcessGroupCommunicator):
    """A group whose sums and maxima are for small tensors.

    Rank r adds what it has to what rank r ⊕ d has, for d = 1, 2, 4, …: the sum has the same bits on all ranks. Those
    beyond the last power of two first give theirs to another rank, which sends them the result.

    With few ranks, or without gloo, the backend's own operations are as good.

    Attributes:
        in_rounds: Whether sums and maxima are ``Rounds``, which go on only while a thread waits for them.
    """

    def __init__(self, group: dist.ProcessGroup, device: str = "cpu") -> None:
        super().__init__(group, device)
        self.in_rounds = self.size > RING_RANKS and self.scatters_whole
        self._last: Rounds | None = None

    def sum(self, x: Tensor) -> Work:
        return self._rounds(x, torch.add) if self.in_rounds else super().sum(x)

    def maximum(self, x: Tensor) -> Work:
        return self._rounds(x, torch.maximum) if self.in_rounds else super().maximum(x)

    def _rounds(self, x: Tensor, combine: Callable[..., Tensor]) -> Work:
        self.issued += 1
        self._last = Rounds(self.group, x, combine, self._last)
        return self._last


class Rounds:
    """A sum or maximum that goes on while a thread waits for it; any number of threads may.

    Args:
        group: The ranks.
        x: This rank's tensor, which receives the result.
        combine: Combines two tensors and writes the result to ``out``.
        before: What was issued before, which ends first: messages are matched by their order alone.
    """

    def __init__(
        self, group: dist.ProcessGroup, x: Tensor, combine: Callable[..., Tensor], before: "Rounds | None"
    ) -> None:
        self._group, self._x, self._combine, self._before = group, x, combine, before
        self._waiting = threading.Lock()
        self._ended = False
        self._error: Exception | None = None

    def is_completed(self) -> bool:
        """Return whether the result is there."""
        return self._ended

    def wait(self, timeout: timedelta | None = None) -> Any:
        """Wait until the result is there. Raises what a message raised.

        Args:
            timeout: Longest wait for a message; None for the group's own.
        """
        with self._waiting:
            if not self._ended and self._error is None:
                try:
                    if self._before is not None:
                        self._before.wait(timeout)
                    self._run(() if timeout is None else (timeout,))
                    self._ended = True
                except Exception as error:
                    self._error = error.with_traceback(None)  # whose frames refer to this
                self._before = None
        if self._error is not None:
            raise self._error

    def get_future(self) -> torch.futures.Future[Any]:
        self.wait()
        return Done().get_future()

    def _run(self, timeout: tuple[timedelta, ...]) -> None:
        rank, size, x = self._group.rank(), self._group.size(), self._x
        doubled = 1 << (size.bit_length() - 1)  # ranks that double
        came = torch.empty_like(x)
        if rank >= doubled:
            self._send(rank - doubled).wait(*timeout)
            self._receive(x, rank - doubled).wait(*timeout)
            return
        if rank + doubled < size:
            self._receive(came, rank + doubled).wait(*timeout)
            self._combine(x, came, out=x)
        distance = 1
        while distance < doubled:
            sent = self._send(rank ^ distance)
            self._receive(came, rank ^ distance).wait(*timeout)
            sent.wait(*timeout)
            self._combine(x, came, out=x)
            distance *= 2
        if rank + doubled < size:
            self._send(rank + doubled).wait(*timeout)

    def _send(self, to: int) -> dist.Work:
        work = dist.isend(self._x, group=self._group, group_dst=to, tag=_TAG)
        assert work is not None  # None: this rank is not in the group
        return work

    def _receive(self, into: Tensor, of: int) -> dist.Work:
        work = dist.irecv(into, group=self._group, group_src=of, tag=_TAG)
        assert work is not None
        return work
