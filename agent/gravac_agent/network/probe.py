"""How fast the network between the ranks is: measured in a moment before the first step, and settled by all alike."""

import time

import torch

from gravac.collectives import Communicator, Network

REPEATS = 3
LONG_ENOUGH = 0.02
"""Seconds of a transfer after which it is not repeated and no larger one is tried."""
LEAST_BYTES = 8 << 10
MOST_BYTES = 8 << 20
"""Bytes that a rank puts on its link in the smallest and the largest transfer."""


def measure(communicator: Communicator) -> Network:
    """α and β of ring all-gathers, the worst rank's. All ranks call it; the result is the same on all.

    An empty message costs (n-1) α, one of S bytes (n-1) (α + S/β). Takes up to 0.3 s; more where a gather takes that
    long by its latency alone.
    """
    others = communicator.size - 1
    if others < 1:
        raise ValueError("a network needs at least 2 ranks")
    _seconds(communicator, 1)  # connections are made by the first
    empty = _seconds(communicator, 1)
    enough = max(LONG_ENOUGH, 2 * empty)  # else it would be latency that is measured
    nbytes = LEAST_BYTES
    while (took := _seconds(communicator, -(-nbytes // others))) < enough and nbytes < MOST_BYTES:
        nbytes = min(MOST_BYTES, nbytes * (4 if took > 1.2 * empty else 32))
    latency, speed = empty / others, nbytes / max(took - empty, took / 10)
    return Network(latency_seconds=_rounded(latency), bytes_per_second=_rounded(speed))


def _seconds(communicator: Communicator, nbytes: int) -> float:
    """Of the quickest of some all-gathers of ``nbytes`` a rank, each as long as its slowest rank took."""
    mine = torch.zeros(nbytes, dtype=torch.uint8)
    every = torch.empty(communicator.size * nbytes, dtype=torch.uint8)
    best = float("inf")
    for repeat in range(REPEATS):
        begun = time.monotonic()
        communicator.gather(every, mine).wait()
        took = torch.tensor([time.monotonic() - begun], dtype=torch.float64)
        communicator.maximum(took).wait()  # so that all ranks stop after as many
        best = min(best, float(took))
        if repeat and best > LONG_ENOUGH:  # once may be a hiccup of a busy machine
            break
    return best


def _rounded(value: float) -> float:
    """To two digits: no more is known, and a journal shall be readable."""
    return float(f"{value:.2g}")
