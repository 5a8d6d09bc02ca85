"""Whether a step counts: known from the tick of all ranks, before any gradient that undoes it is overwritten."""

import time
from collections.abc import Collection

from gravac_agent.exchange.encoder import Encoder
from gravac_agent.exchange.step import InFlight, StepRecord
from gravac_agent.exchange.tick import Tick, TickCodec


def find_out(
    step: StepRecord, ended: Collection[InFlight], complete: bool, encoder: Encoder, codec: TickCodec
) -> bool:
    """Set ``step.counts`` if it is known. Return whether the buckets that wait for it can be decoded.

    A step whose collectives failed does not count.

    Args:
        step: The running step.
        ended: The buckets that wait.
        complete: All transfers of the step have ended. Then wait for the tick, since nothing else is left to do.
        encoder: Decodes means.
        codec: Unpacks ticks.

    Raises:
        Exception: What the collective of the tick raised.
    """
    if step.counts is not None or step.error is not None:
        return True
    if any(bucket.error is not None for bucket in ended):
        step.counts = False
        return True
    # Means in float16 may overflow, which shows when all of them are there.
    if step.tick_work is None or not (complete or (step.tick_work.is_completed() and not step.overflows)):
        return False
    tick = read_tick(step, codec)
    finite = step.finite and all(
        encoder.is_finite(bucket.transfer, bucket.submitted.buffer) for bucket in ended if bucket.unsettled
    )
    step.counts = finite and tick.sums.nonfinite == 0
    return True


def read_tick(step: StepRecord, codec: TickCodec) -> Tick:
    """Wait for the step's tick, once, and return it.

    Raises:
        Exception: What the collective raised.
    """
    if step.ended is None:
        assert step.tick is not None
        assert step.tick_work is not None
        begin = time.monotonic()
        step.tick_work.wait()
        step.activity.append(("communicate", begin, time.monotonic()))
        step.ended = codec.unpack(step.tick)
    return step.ended
