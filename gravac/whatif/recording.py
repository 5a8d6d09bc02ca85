"""What a trace holds that a time model can be fitted to: step times by CF, gains, curves, and how much was trained."""

import math
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from gravac.protocol import Event, GainCurve, JobSpec, LevelSums, WindowReport
from gravac.signals import figures
from gravac.traces import Line

T = TypeVar("T")
LEAST_SETTLED = 3
"""Settled steps a level needs for its medians to count."""
LEAST_SECONDS = 1e-6
"""No step is quicker; a clock may be."""
LEAST_GAIN = 1e-9
"""Less is nothing: training would stand still."""
MOST_KEPT = 300
"""Windows of each CF that are held, the last ones; a trace may be of any length."""
MOST_FACTORS = 64
"""CFs that are told apart; further ones are left out."""
PURE = 0.8
"""Share of a window's steps that a level needs for the window's phases to be taken as its own."""

_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]\d+)?)"
_CHOSEN_FOR = re.compile(rf"Collectives at CF \S+ for {_NUMBER} ms and {_NUMBER} MB/s: ")


@dataclass(frozen=True, slots=True)
class Observation:
    """One level of one window, seconds and bytes of a step on one rank. ``cf`` 1: plainly dense, nothing compressed.

    ``exposed_seconds``: what the step waited for the network. ``compress_seconds``, ``decompress_seconds``: what
    it waited for these; None where the window had other levels too.
    """

    window: int
    cf: float
    settled_steps: int
    seconds: float
    exposed_seconds: float
    payload_bytes: float
    compress_seconds: float | None
    decompress_seconds: float | None


@dataclass
class Recording:
    """A trace as a time model sees it: the windows of its last number of ranks."""

    spec: JobSpec
    seen: dict[float, deque[Observation]] = field(default_factory=dict)
    """By CF; of these and of the next two, the last windows are kept."""
    gains: dict[float, deque[float]] = field(default_factory=dict)
    """Gain at each CF while that CF was sent, a value a window."""
    curves: dict[float, deque[GainCurve]] = field(default_factory=dict)
    """By the CF that was sent in the window."""
    windows: int = 0
    steps: int = 0
    samples: int = 0
    useful_samples: float = 0.0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    measured: tuple[float, float] | None = None
    """Latency (seconds) and bandwidth (bytes/s) as the agent measured them to choose its collectives, if it did."""

    @property
    def ranks(self) -> int:
        return self.spec.world_size

    @property
    def elements(self) -> int:
        return self.spec.model.elements

    @property
    def samples_per_step(self) -> float:
        """Of one rank; 1 where the trainer's samples were not counted."""
        return self.samples / self.steps / self.ranks if self.samples and self.steps else 1.0

    @property
    def observations(self) -> list[Observation]:
        """Of all CFs, ascending."""
        return [each for cf in sorted(self.seen) for each in self.seen[cf]]

    def add(self, report: WindowReport) -> None:
        """Take in a window. One with a step that failed or was not finite says nothing of an ordinary step."""
        self.windows += 1
        self.samples += report.samples
        self.seconds += report.seconds
        kept = figures.gain(report)
        self.useful_samples += report.samples * (1.0 if kept is None else min(1.0, kept))
        steps = figures.steps(report)
        self.steps += max(0, steps)
        if report.failed_steps or report.nonfinite_steps or steps < 1:
            return
        for level in report.levels:
            found = None if level.cf == 1.0 and report.gains else self._observed(report, level, steps)
            if found is not None:
                _keep(self.seen, level.cf, found)
        self._add_gain(report, steps)

    def hear(self, event: Event) -> None:
        """Take in a note. That on collectives says for which network they were chosen (``Ways.notes``)."""
        found = _CHOSEN_FOR.match(event.message) if event.kind == "note" else None
        if found is not None and self.measured is None:
            milliseconds, megabytes = (float(text) for text in found.groups())
            if math.isfinite(milliseconds) and math.isfinite(megabytes):
                self.measured = 1e-3 * milliseconds, 1e6 * megabytes

    def _observed(self, report: WindowReport, level: LevelSums, steps: int) -> Observation | None:
        seconds, exposed = level.step_seconds_median, level.exposed_seconds_median
        if min(level.settled_steps, level.steps) < LEAST_SETTLED or seconds is None or exposed is None:
            return None
        if seconds < LEAST_SECONDS:
            return None
        pure = level.steps >= PURE * steps
        return Observation(
            window=report.window,
            cf=level.cf,
            settled_steps=level.settled_steps,
            seconds=seconds,
            exposed_seconds=min(exposed, seconds),
            payload_bytes=level.payload_bytes / level.steps / self.ranks,
            compress_seconds=report.phases.compress / steps if pure else None,
            decompress_seconds=report.phases.decompress / steps if pure else None,
        )

    def _add_gain(self, report: WindowReport, steps: int) -> None:
        level = max(report.levels, key=lambda one: one.steps, default=None)
        if level is None or level.steps < PURE * steps:
            return
        strongest = max((row.cf for row in report.gains), default=level.cf)
        kept = level.sums.candidate_sq if level.cf == strongest else level.sums.minimum_sq
        gain = figures.ratio(kept, level.sums.compensated_sq)
        if level.cf > 1.0 and gain is not None and gain > LEAST_GAIN:
            _keep(self.gains, level.cf, min(1.0, gain))
        if report.curve is not None:
            _keep(self.curves, level.cf, report.curve)


class NothingRecorded(ValueError):
    """The trace has no window that a model could be fitted to; the message says what is missing."""


def record(lines: Iterable[Line]) -> Recording:
    """Read a trace. Raises NothingRecorded, and TraceError from ``lines``."""
    found: Recording | None = None
    for line in lines:
        if isinstance(line.record, JobSpec):
            found = _begun(found, line.record)
        elif isinstance(line.record, WindowReport) and found is not None:
            found.add(line.record)
        elif isinstance(line.record, Event) and found is not None:
            found.hear(line.record)
    if found is not None and found.elements < 1:
        raise NothingRecorded("its model has no trained elements, so nothing is exchanged")
    if found is None or not found.observations:
        windows = 0 if found is None else found.windows
        raise NothingRecorded(
            f"none of its {windows} windows has {LEAST_SETTLED} settled steps at one CF: record a longer run, or one "
            "with a larger GRAVAC_WINDOW"
        )
    return found


def _begun(found: Recording | None, spec: JobSpec) -> Recording:
    """A restart goes on, unless with other ranks: their times are another model's."""
    if found is None or not found.windows:
        return Recording(spec)
    if (found.ranks, found.elements) == (spec.world_size, spec.model.elements):
        found.spec = spec
        return found
    left_out = f"{found.windows} windows of {found.ranks} ranks before the last restart are left out"
    return Recording(spec, notes=[*found.notes, left_out])


def _keep(held: dict[float, deque[T]], cf: float, value: T) -> None:
    if cf in held or len(held) < MOST_FACTORS:
        held.setdefault(cf, deque(maxlen=MOST_KEPT)).append(value)
