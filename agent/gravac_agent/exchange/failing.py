"""Buckets whose encoding keeps failing. After some steps of that all ranks agree to send them densely from then on."""

import torch
import torch.distributed as dist

from gravac.memories import Bucket
from gravac_agent.exchange.plan import Plan

STEPS = 3
"""Steps in a row that a bucket must fail in. One may be a hiccup, and costs one rank one step."""
_ROOM = 4096
"""Buckets told apart; numbers beyond it share a place, so at worst one more goes dense."""


class Failing:
    """This rank's failures by bucket, and what the ranks agreed on. Used on the exchange thread, but for ``due``."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[str, ...]] = {}
        self._streaks: dict[tuple[str, ...], int] = {}
        self._dense: set[tuple[str, ...]] = set()
        self._bad_steps = 0

    def plan(self, plan: Plan, bucket: Bucket) -> Plan:
        """The plan for this bucket: dense if the ranks agreed on that."""
        self._names[bucket.number] = bucket.names
        return Plan(plan.directive.dense(), 1.0) if self._dense and bucket.names in self._dense else plan

    def count(self, bucket: Bucket, *, failed: bool) -> None:
        """How encoding this bucket went in this step."""
        if failed:
            self._streaks[bucket.names] = self._streaks.get(bucket.names, 0) + 1
        elif self._streaks:
            self._streaks.pop(bucket.names, None)

    def due(self, failed: bool) -> bool:
        """Count a step; ``failed`` says whether any rank failed, which all know from the tick. True: all ranks now
        call ``settle``."""
        self._bad_steps = self._bad_steps + 1 if failed else 0
        if self._bad_steps < STEPS:
            return False
        self._bad_steps = 0
        return True

    def settle(self, group: dist.ProcessGroup) -> list[tuple[str, ...]]:
        """Exchange which buckets keep failing on any rank. Returns those that go dense from now on."""
        failing = torch.zeros(_ROOM, dtype=torch.uint8)
        for number, names in self._names.items():
            if self._streaks.get(names, 0) >= STEPS:
                failing[number % _ROOM] = 1
        dist.all_reduce(failing, dist.ReduceOp.MAX, group=group)
        new = [
            names
            for number, names in sorted(self._names.items())
            if failing[number % _ROOM] and names not in self._dense
        ]
        self._dense.update(new)
        return new

    def forget(self) -> None:
        """Another codec or memory: give every bucket a new chance."""
        self._streaks.clear()
        self._dense.clear()
