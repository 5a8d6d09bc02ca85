"""Recordings: what a time model needs of a trace. Step times by CF, gains, gain curves, and how much was trained."""

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

from gravac.predict.levels import Levels
from gravac.protocol import GainCurve, JobSpec, LevelSums, WindowReport
from gravac.signals import figures
from gravac.signals.efficiency import LEAST_STEPS, Efficiency
from gravac.traces import Line
from gravac.wording import format_rate, format_seconds, plan_in_words

K = TypeVar("K")
T = TypeVar("T")
MIN_SETTLED_STEPS = 3
"""Settled steps that a level needs for its medians to count."""
MIN_SECONDS = 1e-6
"""Shorter steps are errors of a clock."""
MIN_GAIN = 1e-9
"""A smaller gain counts as none."""
MAX_WINDOWS_PER_CF = 300
"""The last windows of each CF that are held; a trace may have any length."""
MAX_CFS = 64
"""CFs that are held; further ones are left out."""
MOVED, MOVED_SHARE, MOVED_WINDOWS = 2.0, 0.1, 3
"""A network changed where steps wait this many times as long, which is this share of a step, in this many windows."""
PURE = 0.8
"""Share of a window's steps that a level needs for the window's phases to count as its own."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One level of one window. Seconds and bytes are of a step on one rank.

    Attributes:
        window: Number of the window.
        cf: CF that was sent; 1: plainly dense, nothing compressed.
        settled_steps: Steps behind the medians.
        seconds: Median duration of a step.
        exposed_seconds: Wait for the network within that.
        payload_bytes: Bytes handed to collectives.
        compress_seconds: Wait for encoding within ``seconds``; None where the window had other levels too.
        decompress_seconds: Wait for decoding, likewise.
        codec: Codec that was sent with; None: the job's compressor.
    """

    window: int
    cf: float
    settled_steps: int
    seconds: float
    exposed_seconds: float
    payload_bytes: float
    compress_seconds: float | None
    decompress_seconds: float | None
    codec: str | None = None


@dataclass
class Recording:
    """A trace as a time model sees it: the windows of its last number of ranks.

    Attributes:
        spec: The job.
        by_cf: Observations by CF. Of these, gains and curves the last windows are held.
        sent: Steps of these windows by the codec and CF that they were sent with; dense is CF 1.
        gains: Gain by codec and CF, while they were sent, one value a window.
        curves: Gain curves by the codec and CF that were sent in the window.
        efficiencies: Statistical efficiency by codec and CF, while they were sent, one estimate a window.
        windows: Windows of the trace.
        steps: Steps of these windows.
        samples: Samples of these windows, all ranks.
        useful_samples: Samples weighted by the statistical efficiency.
        seconds: Duration of these windows.
        notes: What was left out, and whether the network changed.
        raw_mean_sq: Squared mean gradient of sampled coordinates, summed over the steps of levels that show the noise.
        raw_dot_next: Its product with that of the next step, likewise.
    """

    spec: JobSpec
    by_cf: dict[float, deque[Observation]] = field(default_factory=dict)
    sent: Counter[tuple[str, float]] = field(default_factory=Counter)
    gains: dict[tuple[str, float], deque[float]] = field(default_factory=dict)
    curves: dict[tuple[str, float], deque[GainCurve]] = field(default_factory=dict)
    efficiencies: dict[tuple[str, float], deque[Efficiency]] = field(default_factory=dict)
    windows: int = 0
    steps: int = 0
    samples: int = 0
    useful_samples: float = 0.0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    raw_mean_sq: float = 0.0
    raw_dot_next: float = 0.0

    @classmethod
    def from_trace(cls, lines: Iterable[Line]) -> "Recording":
        """Read a trace.

        Raises:
            NothingRecorded: No window is fit to use.
            TraceError: ``lines`` raises it.
        """
        found: Recording | None = None
        for line in lines:
            if isinstance(line.record, JobSpec):
                found = _restarted(found, line.record)
            elif isinstance(line.record, WindowReport) and found is not None:
                found.add(line.record)
        if found is not None and found.elements < 1:
            raise NothingRecorded("its model has no trained elements, so nothing is exchanged")
        if found is not None:
            found.notes += found.moved()
        if found is None or not found.enough:
            windows = 0 if found is None else found.windows
            raise NothingRecorded(
                f"none of its {windows} windows has {MIN_SETTLED_STEPS} settled steps at one CF: record a longer run, "
                "or one with a larger GRAVAC_WINDOW"
            )
        return found

    @property
    def enough(self) -> bool:
        """Whether a time model can be fitted: some CF has ``MIN_SETTLED_STEPS`` settled steps."""
        return any(
            sum(each.settled_steps for each in held) >= MIN_SETTLED_STEPS for held in self.by_cf.values()
        )

    @property
    def ranks(self) -> int:
        """World size."""
        return self.spec.world_size

    @property
    def elements(self) -> int:
        """Gradient elements."""
        return self.spec.model.elements

    @property
    def levels(self) -> Levels:
        """How the ranks of a host divide them."""
        return Levels.of(self.spec)

    @property
    def codec(self) -> str:
        """Codec of most steps that were compressed; the job's compressor where none was."""
        steps = Counter[str]()
        for (codec, cf), count in self.sent.items():
            if cf > 1.0:
                steps[codec] += count
        return max(steps, key=lambda codec: steps[codec], default=self.spec.compressor)

    @property
    def confirmed(self) -> float | None:
        """ρ, the part of the mean gradient that is not noise; None where no window showed it."""
        if not self.raw_mean_sq > 0.0:
            return None
        return min(1.0, max(0.0, self.raw_dot_next / self.raw_mean_sq))

    def moved(self) -> list[str]:
        """Return that the network changed while this was recorded, by the plan that shows it best; empty: it did not.

        Of two stretches of windows with the same plan, at least ``MOVED_WINDOWS`` each, one waited ``MOVED`` times as
        long for the network, by medians, and that is a tenth of a step.
        """
        by_plan: dict[tuple[str, float], list[Observation]] = {}
        for each in self.observations:
            by_plan.setdefault((each.codec or self.spec.compressor, each.cf), []).append(each)
        found: list[tuple[float, str]] = []
        for plan, seen in by_plan.items():
            step = median(each.seconds for each in seen)
            for at in range(MOVED_WINDOWS, len(seen) - MOVED_WINDOWS + 1):
                parts = [[each.exposed_seconds for each in part] for part in (seen[:at], seen[at:])]
                was, now = map(median, parts)
                if abs(was - now) < MOVED_SHARE * step or max(was, now) < MOVED * min(was, now):
                    continue
                off = math.fsum(
                    abs(each - middle)
                    for part, middle in zip(parts, (was, now), strict=True)
                    for each in part
                )
                found.append(
                    (
                        off / abs(was - now) / len(seen),
                        f"the network changed while this was recorded: up to window {seen[at - 1].window} steps with "
                        f"{plan_in_words(*plan)} waited {format_seconds(was)} for it, then {format_seconds(now)}; "
                        "what is predicted is between the two",
                    )
                )
        return [min(found)[1]] if found else []

    @property
    def samples_per_step(self) -> float:
        """Samples a step and rank; 1 where the trainer's samples were not counted."""
        return self.samples / self.steps / self.ranks if self.samples and self.steps else 1.0

    @property
    def observations(self) -> list[Observation]:
        """Observations of all CFs, ascending."""
        return [each for cf in sorted(self.by_cf) for each in self.by_cf[cf]]

    def add(self, report: WindowReport) -> None:
        """Add a window. Step times of a window with a failed or non-finite step do not count."""
        self.windows += 1
        self.samples += report.samples
        self.seconds += report.seconds
        kind, compressor, senders = self.spec.optimizer_kind, self.spec.compressor, self.spec.senders
        learned = figures.efficiency(report, kind, compressor, senders)
        self.useful_samples += report.samples * (1.0 if learned is None else learned.likely)
        for level in report.levels:
            codec = level.codec or compressor
            self.sent[codec if level.cf > 1.0 else compressor, level.cf] += level.steps
            shown = None if level.cf == 1.0 else figures.level_efficiency(level, kind, compressor, senders)
            if shown is not None:
                _append(self.efficiencies, (codec, level.cf), shown)
            if level.sums.progress_steps >= LEAST_STEPS:
                self.raw_mean_sq += level.sums.raw_mean_sq
                self.raw_dot_next += level.sums.raw_dot_next
        steps = figures.steps(report)
        self.steps += max(0, steps)
        if report.failed_steps or report.nonfinite_steps or steps < 1:
            return
        for level in report.levels:
            found = None if level.cf == 1.0 and report.gains else self._observed(report, level, steps)
            if found is not None:
                _append(self.by_cf, level.cf, found)
        self._add_gain(report, steps)

    def _observed(self, report: WindowReport, level: LevelSums, steps: int) -> Observation | None:
        seconds, exposed = level.step_seconds_median, level.exposed_seconds_median
        needed = min(MIN_SETTLED_STEPS, steps)  # a policy in a hurry has windows of one step
        if min(level.settled_steps, level.steps) < needed or seconds is None or exposed is None:
            return None
        if seconds < MIN_SECONDS:
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
            codec=level.codec,
        )

    def _add_gain(self, report: WindowReport, steps: int) -> None:
        level = max(report.levels, key=lambda one: one.steps, default=None)
        if level is None or level.steps < PURE * steps:
            return
        sent = level.codec or self.spec.compressor, level.cf
        strongest = max((row.cf for row in report.gains), default=level.cf)
        sent_sq = level.sums.candidate_sq if level.cf == strongest else level.sums.minimum_sq
        gain = figures.ratio(sent_sq, level.sums.compensated_sq)
        if level.cf > 1.0 and gain is not None and gain > MIN_GAIN:
            _append(self.gains, sent, min(1.0, gain))
        if report.curve is not None:
            _append(self.curves, sent, report.curve)


class NothingRecorded(ValueError):
    """The trace has no window that a model can be fitted to; the message says what is missing."""


def _restarted(found: Recording | None, spec: JobSpec) -> Recording:
    """Return the recording to go on with: a new one after a restart with other ranks, levels or another link, whose
    times differ."""
    if found is None or not found.windows:
        return Recording(spec)
    same = (found.ranks, found.elements) == (spec.world_size, spec.model.elements)
    alike = found.levels.ranks == Levels.of(spec).ranks
    if same and alike and found.spec.link == spec.link:
        found.spec = spec
        return found
    was = f"of {found.ranks} ranks"
    if same and not alike:
        was += (
            f" with gradients divided among {found.levels.ranks}"
            if found.spec.hosts
            else " with whole gradients"
        )
    elif same:
        link = found.spec.link
        was = "on the real network" if link is None else f"on a link of {format_rate(link.bits_per_second)}"
    left_out = f"{found.windows} windows {was} before the last restart are left out"
    return Recording(spec, notes=[*found.notes, left_out])


def _append(held: dict[K, deque[T]], key: K, value: T) -> None:
    if key in held or len(held) < MAX_CFS:
        held.setdefault(key, deque(maxlen=MAX_WINDOWS_PER_CF)).append(value)
