"""Two sides measured in turn: what the machine does meanwhile hits both, and ratios are of pairs.

Seconds are CPU time of the thread, because neighbours on a shared machine take turns with the longer side more often
than with the shorter. Every other pair runs the other way round. Both sides should keep their buffers: fresh memory
costs more than the work done in it.
"""

import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import torch

Side = Callable[[], object]
WARM_UP = 2
"""Pairs that are not counted."""


def compare(
    name: str,
    against: str,
    n: int,
    cf: float,
    pairs: int,
    *,
    baseline: Side,
    ours: Side,
    backends: tuple[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The row of one comparison. ``backends``: the kernels that ``baseline`` and ``ours`` run on, if they differ;
    ``more``: further fields of the row."""
    from gravac import kernels

    before = kernels.active()
    taken: list[tuple[float, float]] = []
    for number in range(WARM_UP + pairs):
        seconds = [0.0, 0.0]
        for side in (0, 1) if number % 2 else (1, 0):
            if backends is not None:
                kernels.use(backends[side])  # type: ignore[arg-type]
            seconds[side] = cpu_seconds((baseline, ours)[side])
        taken.append((seconds[0], seconds[1]))
    if backends is not None:
        kernels.use(before)
    return row(name, against, n, cf, taken[WARM_UP:], **more)


def row(
    name: str, against: str, n: int, cf: float, taken: list[tuple[float, float]], **more: Any
) -> dict[str, Any]:
    """Figures of pairs (seconds of the baseline, ours): medians, and quartiles beside them. ``ratio``: baseline / ours,
    of each pair, so above 1 ours is faster."""
    theirs, mine = ([pair[side] for pair in taken] for side in (0, 1))
    ratios = [one / other for one, other in taken]
    return {
        "name": name,
        "against": against,
        "n": n,
        "cf": cf,
        "seconds": median(mine),
        "seconds_quartiles": quartiles(mine),
        "baseline": median(theirs),
        "baseline_quartiles": quartiles(theirs),
        "ratio": median(ratios),
        "quartiles": quartiles(ratios),
        "pairs": len(taken),
        **more,
    }


def quartiles(values: list[float]) -> list[float]:
    """The first and the third."""
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return [low, high]


def cpu_seconds(side: Side) -> float:
    """CPU time of this thread that ``side`` takes."""
    begun = time.thread_time()
    side()
    return time.thread_time() - begun


def limit(n: int, repeats: int) -> dict[str, Any]:
    """What this machine's memory lets any pass over n float32 do at best: medians of copying them, and of reading two
    arrays, adding and writing a third. Bytes are those read and those written."""
    x, y, out = torch.ones(n), torch.ones(n), torch.empty(n)
    copying, adding = [], []
    for _ in range(WARM_UP + repeats):
        copying.append(cpu_seconds(lambda: out.copy_(x)))
        adding.append(cpu_seconds(lambda: torch.add(x, y, out=out)))
    copy, add = median(copying[WARM_UP:]), median(adding[WARM_UP:])
    return {
        "n": n,
        "copy_seconds": copy,
        "copy_bytes_per_second": 8 * n / copy,
        "read_add_write_seconds": add,
        "read_add_write_bytes_per_second": 12 * n / add,
    }
