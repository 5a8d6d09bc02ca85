"""The figures of a benchmark: a row for each method, and the machine they were measured on."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any


def describe_machine() -> dict[str, Any]:
    """Date (UTC), processor, usable cores, load before, memory, system and versions; None where unknown."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: _version(package) for package in ("gravac", "torch", "numba")},
    }


@dataclass(slots=True, kw_only=True)
class MethodAnswers:
    """The answers of one method's ranks: for each timed block, a list with one answer per rank."""

    name: str
    blocks: list[list[dict[str, Any]]] = field(default_factory=list)
    steps: int = 0
    elements: int = 0
    heldout_loss: float | None = None
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    error: str | None = None

    def step_seconds(self) -> list[float]:
        """Seconds of every timed step; see ``steps_of``."""
        return [seconds for block in self.blocks for seconds in steps_of(block)]

    def add_point(self, answers: Sequence[dict[str, Any]]) -> None:
        """Add a point to the curve: steps, seconds that they took if all took as long as the timed ones, and loss."""
        timed = self.step_seconds()
        self.curve.append((self.steps, fmean(timed) * self.steps, heldout_loss(answers)))

    def per_step(self, what: str) -> float | None:
        """Mean over ranks and timed steps of a sum that blocks report; None where unknown."""
        sums = [(answer[what], len(answer["seconds"])) for block in self.blocks for answer in block]
        if not sums or any(value is None for value, _ in sums):
            return None
        return float(sum(value for value, _ in sums) / sum(steps for _, steps in sums))

    def losses(self) -> list[float]:
        """Mean training loss of each timed block, over ranks."""
        return [fmean(answer["loss"] for answer in block) for block in self.blocks]


def steps_of(answers: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds of each step of a block that all ranks began together: from the end of the last rank's step to the next.

    The longest step of any rank would be more: where ranks share cores, one is late in this step, another in the next.
    """
    ends = [max(each) for each in zip(*(accumulate(answer["seconds"]) for answer in answers), strict=True)]
    return [end - before for before, end in pairwise([0.0, *ends])]


def heldout_loss(answers: Sequence[dict[str, Any]]) -> float:
    """Nats per predicted byte, over all ranks."""
    return float(sum(answer["nats"] for answer in answers) / sum(answer["predicted"] for answer in answers))


def quartiles(values: Sequence[float]) -> list[float]:
    """The first and the third quartile of at least one value."""
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return [low, high]


def rows(tallies: Sequence[MethodAnswers], emulated: bool) -> list[dict[str, Any]]:
    """One row per method: seconds and bytes per step, losses in nats per byte.

    ``baseline``: seconds per step of ``none``, a lower bound for all methods. ``ratio``: baseline / seconds. Both are
    None where ``none`` was not run. ``sent_bytes``: of a host, from the counter of its interface, including headers and
    acknowledgements. ``curve``: steps, seconds and held-out loss after each round, if asked for. ``cpu_seconds``: CPU
    time of a rank, all threads. ``step_seconds``: every timed step, in order.
    """
    limit = next((tally for tally in tallies if tally.name == "none" and tally.error is None), None)
    baseline = median(limit.step_seconds()) if limit is not None and limit.blocks else None
    return [_row(tally, baseline, emulated) for tally in tallies]


def _row(tally: MethodAnswers, baseline: float | None, emulated: bool) -> dict[str, Any]:
    timed = tally.step_seconds()
    seconds = median(timed) if timed else None
    losses = tally.losses()
    return {
        "name": tally.name,
        "seconds": seconds,
        "seconds_quartiles": quartiles(timed) if timed else [None, None],
        "baseline": baseline,
        "ratio": None if baseline is None or not seconds else baseline / seconds,
        "cpu_seconds": tally.per_step("cpu_seconds"),
        "sent_bytes": tally.per_step("sent_bytes"),
        "payload_bytes": tally.per_step("payload_bytes"),
        "dense_bytes": 4 * tally.elements,
        "training_losses": losses,
        "heldout_loss": tally.heldout_loss,
        "curve": tally.curve,
        "steps": tally.steps,
        "step_seconds": timed,
        "emulated": emulated,
        "error": tally.error,
    }


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
