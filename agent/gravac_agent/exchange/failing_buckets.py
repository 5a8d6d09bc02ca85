"""Buckets that all ranks agree to send densely.

These are buckets that keep failing to encode on any rank, and buckets that a rank cannot decode. A bucket that keeps
failing even when it is sent densely does without the error memory.

Only the rank that cannot decode a mean knows it, and the others would step with that mean. So the first time that a
bucket is sent with a codec, all ranks decode it on trial, before any of them uses the result.
"""

from collections.abc import Sequence

import torch

from gravac.collectives import Communicator
from gravac_agent.exchange.channel import BucketChannel

FAILED_STEPS = 3
"""Steps in a row in which a bucket must fail. A single failure costs only one rank's part of one step."""
_PLACES = 4096
"""Places in the exchanged message. Buckets with larger numbers share one, so at worst one bucket more goes dense."""


class FailingBuckets:
    """Finds the buckets that fail on any rank.

    The exchange thread uses it, except for ``count_step``, which the training thread calls.

    Args:
        channels: The rank's channels by the bucket's number; None where there is none.
    """

    def __init__(self, channels: list[BucketChannel | None]) -> None:
        self._channels = channels
        self.bad_steps = 0
        """Steps in a row in which a rank failed."""

    def count_step(self, failed: bool) -> bool:
        """Count a step, and return whether all ranks must call ``agree`` now.

        Args:
            failed: Whether any rank failed, which all ranks know from the tick.
        """
        # A bucket that failed often enough implies as many bad steps, so ranks exchange nothing until then.
        self.bad_steps = self.bad_steps + 1 if failed else 0
        if self.bad_steps < FAILED_STEPS:
            return False
        self.bad_steps = 0
        return True

    def agree(self, ranks: Communicator) -> tuple[list[BucketChannel], list[BucketChannel]]:
        """Exchange which buckets keep failing on any rank. All ranks call it.

        Returns:
            The buckets that are sent densely from now on, and those that already were, whose memory keeps failing.
        """
        failing = self._exchange(
            [at for at, one in enumerate(self._channels) if one is not None and one.failures >= FAILED_STEPS],
            ranks,
        )
        without = [channel for channel in failing if channel.dense and channel.uses_memory]
        return _go_dense(failing), without

    def agree_on_decoded(self, failed: Sequence[int], ranks: Communicator) -> list[BucketChannel]:
        """Exchange which buckets a rank could not decode. All ranks call it, and wait.

        Args:
            failed: Numbers of those that this rank could not decode.
            ranks: The ranks.

        Returns:
            The buckets that are sent densely from now on.
        """
        return _go_dense(self._exchange(failed, ranks))

    def _exchange(self, numbers: Sequence[int], ranks: Communicator) -> list[BucketChannel]:
        """Return the channels of the buckets that any rank gives the number of."""
        failing = torch.zeros(_PLACES, dtype=torch.uint8, device="cpu")
        for number in numbers:
            failing[number % _PLACES] = 1
        ranks.maximum(failing).wait()
        return [one for at, one in enumerate(self._channels) if one is not None and failing[at % _PLACES]]


def _go_dense(failing: Sequence[BucketChannel]) -> list[BucketChannel]:
    new = [channel for channel in failing if not channel.dense]
    for channel in new:
        channel.dense, channel.failures = True, 0
    return new
