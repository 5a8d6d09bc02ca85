"""A training program's turns: blocks of steps that the harness asks for, with and without a network.

Without a harness the program trains ``STEPS`` steps.
"""

import json
import os
import socket
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from observe_parts.no_network import no_network

SOCKET = "OBSERVE_TURNS"
STEPS = 30


class Turns:
    """``with Turns() as turns:`` and then train until ``turns.stepped(loss)`` is False."""

    def __init__(self) -> None:
        self._network = ExitStack()
        self._seconds: list[float] = []
        self._cpu: list[float] = []
        self._losses: list[str] = []
        self._harness = None
        self._left = STEPS
        if SOCKET in os.environ:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(os.environ[SOCKET])
            self._harness = connection.makefile("rw", encoding="utf-8")
            self._send(rank=int(os.environ["RANK"]))

    def __enter__(self) -> Self:
        if self._harness is not None:
            self._wait()
        self._last = time.perf_counter(), time.thread_time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._network.close()

    def stepped(self, loss: Tensor) -> bool:
        """End a step. Return whether to go on."""
        self._losses.append(float(loss.detach()).hex())
        now = time.perf_counter(), time.thread_time()
        self._seconds.append(now[0] - self._last[0])
        self._cpu.append(now[1] - self._last[1])
        self._last = now
        self._left -= 1
        if self._left > 0:
            return True
        if self._harness is None:
            return False
        self._send(seconds=self._seconds, cpu=self._cpu, losses=self._losses)
        self._seconds, self._cpu, self._losses = [], [], []
        more = self._wait()
        self._last = time.perf_counter(), time.thread_time()
        return more

    def _wait(self) -> bool:
        """Wait for the next turn. Return whether there is one."""
        assert self._harness is not None
        asked = json.loads(self._harness.readline() or "{}")
        self._network.close()
        self._left = asked.get("steps", 0)
        if self._left and not asked["network"]:
            self._network.enter_context(no_network())
        return self._left > 0

    def _send(self, **answer: Any) -> None:
        assert self._harness is not None
        self._harness.write(json.dumps(answer) + "\n")
        self._harness.flush()
