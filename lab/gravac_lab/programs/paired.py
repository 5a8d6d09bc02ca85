"""Two sides measured in turn, so that the machine's load hits both; ratios are of pairs.

Seconds are CPU time of the thread, because other processes interrupt the longer side more often than the shorter one.
Every other pair runs in reverse order. Both sides should reuse their buffers: allocating costs more than computing.
"""

import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import torch

Side = Callable[[], object]
WARM_UP = 2
"""Pairs measured first that do not count."""


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
    """Measure two sides and return their row.

    Args:
        name: Of our side.
        against: Name of the baseline.
        n: Elements.
        cf: Compression factor.
        pairs: Pairs that count.
        baseline: The baseline's side.
        ours: Our side.
        backends: Kernels that ``baseline`` and ``ours`` run on, if they differ.
        more: Further fields of the row.
    """
    from gravac import kernels

    before = kernels.active()
    measured: list[tuple[float, float]] = []
    for number in range(WARM_UP + pairs):
        seconds = [0.0, 0.0]
        for side in (0, 1) if number % 2 else (1, 0):
            if backends is not None:
                kernels.use(backends[side])  # type: ignore[arg-type]
            seconds[side] = cpu_seconds((baseline, ours)[side])
        measured.append((seconds[0], seconds[1]))
    if backends is not None:
        kernels.use(before)
    return row(name, against, n, cf, measured[WARM_UP:], **more)


def row(
    name: str, against: str, n: int, cf: float, measured: list[tuple[float, float]], **more: Any
) -> dict[str, Any]:
    """Return medians and quartiles of pairs (seconds of the baseline, seconds of ours).

    ``ratio`` is baseline / ours of each pair: above 1, ours is faster.
    """
    theirs, mine = ([pair[side] for pair in measured] for side in (0, 1))
    ratios = [one / other for one, other in measured]
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
        "pairs": len(measured),
        **more,
    }


def quartiles(values: list[float]) -> list[float]:
    """Return the first and the third quartile."""
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return [low, high]


def cpu_seconds(side: Side) -> float:
    """Return the CPU time of this thread that ``side`` takes."""
    began = time.thread_time()
    side()
    return time.thread_time() - began


def limit(n: int, repeats: int) -> dict[str, Any]:
    """Measure the machine's memory, which bounds any pass over ``n`` float32.

    Returns:
        Medians of copying an array, and of adding two arrays into a third. Bytes are those read plus those written.
    """
    x, y, out = (
        torch.ones(n, dtype=torch.float32),
        torch.ones(n, dtype=torch.float32),
        torch.empty(n, dtype=torch.float32),
    )
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
