"""Buckets that all ranks agree to send densely.

These are buckets that keep failing to encode on any rank, and buckets that a rank cannot decode. A bucket that keeps
failing even when it is sent densely does without the error memory.

Only the rank that cannot decode a mean knows it, and the others would step with that mean. So the first time that a
bucket is sent with a codec, all ranks decode it on trial, before any of them uses the result.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from gravac.aggregators import Aggregator
from gravac.collectives import Communicator, communicator
from gravac.memories import Bucket
from gravac_agent.exchange.plan import StepPlan

FAILED_STEPS = 3
"""Steps in a row in which a bucket must fail. A single failure costs only one rank's part of one step."""
_PLACES = 4096
"""Places in the exchanged message. Buckets with larger numbers share one, so at worst one bucket more goes dense."""


class FailingBuckets:
    """This rank's failures by bucket, and what the ranks agreed on.

    The exchange thread uses it, except for ``count_step``, which the training thread calls.
    """

    def __init__(self) -> None:
        self._names: dict[int, tuple[str, ...]] = {}
        self._streaks: dict[tuple[str, ...], int] = {}
        self._dense: set[tuple[str, ...]] = set()
        self._without_memory: set[tuple[str, ...]] = set()
        self._bad_steps = 0
        self._decoded: set[tuple[int, tuple[str, ...]]] = set()

    def plan_for(self, bucket: Bucket, plan: StepPlan) -> StepPlan:
        """Return the plan for this bucket, or a dense one if the ranks agreed on that."""
        self._names[bucket.number] = bucket.names
        return StepPlan(plan.directive.dense(), 1.0) if self._dense and bucket.names in self._dense else plan

    def keeps_memory(self, bucket: Bucket) -> bool:
        """Return whether the error memory takes part in this bucket. The answer is equal on all ranks."""
        return not self._without_memory or bucket.names not in self._without_memory

    def record(self, bucket: Bucket, *, failed: bool) -> None:
        """Record whether encoding this bucket failed in this step."""
        if failed:
            self._streaks[bucket.names] = self._streaks.get(bucket.names, 0) + 1
        elif self._streaks:
            self._streaks.pop(bucket.names, None)

    def count_step(self, failed: bool) -> bool:
        """Count a step, and return whether all ranks must call ``agree`` now.

        Args:
            failed: Whether any rank failed, which all ranks know from the tick.
        """
        # A bucket that failed often enough implies as many bad steps, so ranks exchange nothing until then.
        self._bad_steps = self._bad_steps + 1 if failed else 0
        if self._bad_steps < FAILED_STEPS:
            return False
        self._bad_steps = 0
        return True

    def agree(self, group: dist.ProcessGroup) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
        """Exchange which buckets keep failing on any rank. All ranks call it.

        Returns:
            The parameter names of the buckets that are sent densely from now on, and of those that already were and
            do without the error memory from now on.
        """
        failing = self._exchange(
            [number for number, names in self._names.items() if self._streaks.get(names, 0) >= FAILED_STEPS],
            communicator(group),
        )
        without = [names for names in failing if names in self._dense and names not in self._without_memory]
        self._without_memory.update(without)
        return self._go_dense(failing), without

    def is_proven(self, bucket: Bucket, aggregator: Aggregator) -> bool:
        """Return whether all ranks have decoded this bucket, sent with this aggregator. It is equal on all ranks."""
        return (id(aggregator), bucket.names) in self._decoded

    def agree_on_decoded(
        self, buckets: Sequence[Bucket], failed: Sequence[int], aggregator: Aggregator, ranks: Communicator
    ) -> list[tuple[str, ...]]:
        """Exchange which buckets a rank could not decode. All ranks call it, and wait.

        Args:
            buckets: Those that were decoded for the first time.
            failed: Numbers of those that this rank could not decode.
            aggregator: What they were sent with.
            ranks: The ranks.

        Returns:
            The parameter names of the buckets that are sent densely from now on.
        """
        self._decoded.update((id(aggregator), bucket.names) for bucket in buckets)
        return self._go_dense(self._exchange(failed, ranks))

    def _exchange(self, numbers: Sequence[int], ranks: Communicator) -> list[tuple[str, ...]]:
        """Return the parameter names of the buckets that any rank gives the number of."""
        failing = torch.zeros(_PLACES, dtype=torch.uint8)
        for number in numbers:
            failing[number % _PLACES] = 1
        ranks.maximum(failing).wait()
        return [names for number, names in sorted(self._names.items()) if failing[number % _PLACES]]

    def _go_dense(self, failing: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        new = [names for names in failing if names not in self._dense]
        self._dense.update(new)
        for names in new:
            self._streaks.pop(names, None)
        return new

    def clear(self) -> None:
        """Try all buckets again, after a change of codec or memory."""
        self._decoded.clear()
        self._streaks.clear()
        self._dense.clear()
        self._without_memory.clear()


def bucket_label(names: tuple[str, ...]) -> str:
    """Return a bucket's parameters as text for a message."""
    return names[0] + (f" and {len(names) - 1} more parameters" if len(names) > 1 else "")
