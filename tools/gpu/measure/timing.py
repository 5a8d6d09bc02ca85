"""Times two sides in turn: on a GPU between events of its stream, on the CPU by the clock."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Side = Callable[[], object]
WARM_UP = 3
"""Pairs measured first that do not count."""
HEAD_START = 2_000_000
"""Cycles that a GPU idles before it is timed, about a millisecond. The host launches meanwhile, so that short kernels
are not timed by how fast they are launched."""


@dataclass(frozen=True, slots=True)
class Paired:
    """Two sides, in seconds; medians, with the first and the third quartile where there are two more."""

    ratios: tuple[float, float, float]
    """Baseline / ours of each pair: first quartile, median, third quartile. Above 1, ours is faster."""
    baseline: float
    ours: float
    host: float
    """Until ours had been started: what the trainer's thread pays."""


def seconds_of(device: torch.device, side: Side) -> tuple[float, float]:
    """Run a side alone. Returns seconds on the device, and seconds until the host had started all of it."""
    if device.type != "cuda":
        begun = time.perf_counter()
        side()
        taken = time.perf_counter() - begun
        return taken, taken
    torch.cuda.synchronize(device)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(HEAD_START)
    begin.record()
    begun = time.perf_counter()
    side()
    started = time.perf_counter() - begun
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3, started


def compare(device: torch.device, pairs: int, baseline: Side, ours: Side) -> Paired:
    """Time two sides in turn.

    Args:
        device: Where they run.
        pairs: Pairs that count, after some that warm up.
        baseline: The baseline's side.
        ours: Our side.
    """
    taken = [(seconds_of(device, baseline), seconds_of(device, ours)) for _ in range(pairs + WARM_UP)]
    del taken[:WARM_UP]
    return Paired(
        ratios=quartiles([theirs[0] / mine[0] for theirs, mine in taken]),
        baseline=statistics.median(theirs[0] for theirs, _ in taken),
        ours=statistics.median(mine[0] for _, mine in taken),
        host=statistics.median(mine[1] for _, mine in taken),
    )


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
