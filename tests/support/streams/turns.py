"""Which rank runs: one at a time, so that a schedule depends on its seed and not on how fast the threads are."""

import random
import threading

_OFFERED = 0.1
"""How often a rank that can go on lets another one run."""


class Turns:
    """The turns of a few threads, one for each rank. A seed chooses who is next.

    Args:
        size: Number of ranks.
        seed: Of the choices.

    Attributes:
        failed: Whether a rank ended with an error, so that it joins no more collectives.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.failed = False
        self._random = random.Random(seed)
        self._left = list(range(size))
        self._stuck: set[int] = set()
        self._gates = [threading.Semaphore(0) for _ in range(size)]
        self._wake(self._left)

    def begin(self, rank: int) -> None:
        """Wait for the rank's first turn."""
        self._gates[rank].acquire()

    def offer(self, rank: int, *, idle: bool = False) -> None:
        """Let another rank run, now and then; where this one is ``idle``, in any case."""
        if idle or self._random.random() < _OFFERED:
            self._pass(rank, [one for one in self._left if one != rank])

    def wait(self, rank: int) -> bool:
        """Let the others run until one of them did something. Returns False where none of them can go on either."""
        self._stuck.add(rank)
        able = [one for one in self._left if one not in self._stuck]
        self._pass(rank, able)
        return bool(able)

    def help(self) -> None:
        """Note that a rank did something that others may wait for."""
        self._stuck.clear()

    def end(self, rank: int, failed: bool) -> None:
        """End the rank's last turn."""
        self.failed = self.failed or failed
        self._left.remove(rank)
        self._stuck.clear()
        self._wake(self._left)

    def _pass(self, rank: int, others: list[int]) -> None:
        if others:
            self._wake(others)
            self._gates[rank].acquire()

    def _wake(self, among: list[int]) -> None:
        if among:
            self._gates[self._random.choice(among)].release()
