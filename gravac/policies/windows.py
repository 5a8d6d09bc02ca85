"""The way from one window to the next decision: what the window measured, and how one decision follows another."""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gravac.protocol import Candidate, Decision, LevelSums, Phase, Trial, WindowReport

MOST = 1e15
"""Samples per second that records can carry; only a broken clock gets there."""


class AsBefore(Enum):
    """Type of ``KEPT``: an argument that was not given, where None has a meaning already."""

    KEPT = "as in the decision before"


KEPT: Final = AsBefore.KEPT


@dataclass(frozen=True, slots=True)
class WindowMeasurement:
    """One CF of one codec in one window. ``gain`` is None until the ranks have measured one; that of dense is 1.

    T_sys = samples of one step (all ranks) / median seconds of a settled step on rank 0.
    """

    cf: float
    window: int
    settled_steps: int
    gain: float | None
    step_seconds: float
    exposed_seconds: float | None
    samples_per_second: float
    codec: str | None = None

    @property
    def useful_samples_per_second(self) -> float | None:
        """T_comp = T_sys · gain, the paper's compression throughput (GraVAC, algorithm 1)."""
        return None if self.gain is None else self.samples_per_second * self.gain

    @property
    def exposed_ratio(self) -> float | None:
        """Share of the step spent waiting for the network."""
        return None if self.exposed_seconds is None else self.exposed_seconds / self.step_seconds

    @property
    def free_samples_per_second(self) -> float | None:
        """Samples/s if no step waited for the network; None if the wait is not known, or is the whole step."""
        if self.exposed_seconds is None or self.exposed_seconds >= self.step_seconds:
            return None
        free = self.step_seconds - self.exposed_seconds
        return min(MOST, self.samples_per_second * self.step_seconds / free)


def exposed_seconds(transfer: float, hidden: float, last: float = 0.0) -> float:
    """Return the seconds that a step waits for a transfer. By this ``auto`` and ``gravac.predict`` predict steps.

    Args:
        transfer: Seconds of the exchange without overlap.
        hidden: Most of it that overlaps with other work. Below 0 it is a wait that comes on top.
        last: Share of the transfer that overlaps with nothing, such as the last bucket's.
    """
    return max(last * transfer, transfer - hidden)


def measure(report: WindowReport, decision: Decision, min_settled: int) -> dict[float, WindowMeasurement]:
    """Return every CF with at least ``min_settled`` settled steps under ``decision``, by CF.

    Samples per step are those of the whole window, as trainers feed equal batches to all steps. If the trainer's
    samples cannot be counted (0 reported), each step counts as one.
    """
    found: dict[float, WindowMeasurement] = {}
    steps = report.last_step - report.first_step + 1
    for level in levels_under(report, decision):
        seconds = level.step_seconds_median
        if level.settled_steps < min_settled or seconds is None or seconds <= 0 or steps <= 0:
            continue
        found[level.cf] = WindowMeasurement(
            cf=level.cf,
            window=report.window,
            settled_steps=level.settled_steps,
            gain=gain_of(report, level.cf, decision.codec),
            step_seconds=seconds,
            exposed_seconds=level.exposed_seconds_median,
            samples_per_second=min(MOST, (report.samples or steps) / steps / seconds),
            codec=decision.codec,
        )
    return found


def levels_under(report: WindowReport, decision: Decision) -> tuple[LevelSums, ...]:
    """Return the levels of the window that ran under ``decision``; none if the ranks were in fallback."""
    if report.phase == "fallback":
        return ()
    sent = (decision.cf_minimum, decision.cf_candidate)
    return tuple(
        level
        for level in report.levels
        if level.epoch == decision.epoch
        and level.steps > 0
        and (level.cf == 1.0 or (level.cf in sent and level.codec == decision.codec))
    )


def dense_baseline(report: WindowReport, decision: Decision) -> LevelSums | None:
    """Return the window's level that measures plain dense training, if it has one.

    A step that the gate sent dense under a compressing decision compressed first, so it is slower and does not count.
    """
    if not decision.dense:
        return None
    return next((level for level in levels_under(report, decision) if level.cf == 1.0), None)


def gain_of(report: WindowReport, cf: float, codec: str | None = None) -> float | None:
    """Return the smoothed gain of ``cf`` at the end of the window, at most 1; 1 for dense, None if not measured.

    Args:
        report: The window.
        cf: Compression factor.
        codec: Codec of a decision: None for the job's compressor.
    """
    if cf == 1.0:
        return 1.0
    rows = (row for row in report.gains if (row.cf, row.codec) == (cf, codec))
    return next((min(1.0, row.gain) for row in rows), None)


def predicted_gain(report: WindowReport, cf: float) -> float | None:
    """Return about the largest gain that the job's codec can reach at ``cf``, tried or not; None if not known.

    It is read off the window's curve at the nearest weaker CF. The curve is for the present residual, and a stronger CF
    makes the residual grow, so less is reached: of 0.41 predicted at CF 100 after a dense run, 0.18 was measured.
    """
    curve = report.curve
    if curve is None or not curve.own:
        return None
    step = min(len(curve.gains) - 1, math.floor(20 * math.log10(cf) + 1e-9))
    return curve.gains[step]


def first_decision(
    epoch: int,
    phase: Phase,
    cf: float,
    reason: str,
    *,
    epsilon: float = 0.0,
    candidates: tuple[Candidate, ...] = (),
    window_steps: int | None = None,
) -> Decision:
    """Return the decision before the first window."""
    return Decision(
        window=-1,
        epoch=epoch,
        phase=phase,
        cf_minimum=cf,
        cf_candidate=cf,
        epsilon=epsilon,
        rule="start",
        reason=reason,
        candidates=candidates,
        window_steps=window_steps,
    )


def next_decision(
    previous: Decision,
    report: WindowReport,
    rule: str,
    reason: str,
    *,
    phase: Phase | None = None,
    minimum: float | None = None,
    candidate: float | None = None,
    candidates: tuple[Candidate, ...] | None = None,
    epsilon: float | None = None,
    codec: str | AsBefore | None = KEPT,
    window_steps: int | AsBefore | None = KEPT,
    trial: Trial | None = None,
) -> Decision:
    """Return the decision after ``previous``, made at the end of ``report``; what is not given stays.

    The epoch grows by one exactly when phase, minimum, candidate or codec change: it names a way of sending, so steps
    measured under equal epochs may be compared. ``codec`` and ``window_steps`` None: those of the job.
    """
    new_phase = previous.phase if phase is None else phase
    new_minimum = previous.cf_minimum if minimum is None else minimum
    new_candidate = previous.cf_candidate if candidate is None else candidate
    new_codec = previous.codec if codec is KEPT else codec
    changed = (new_phase, new_minimum, new_candidate, new_codec) != (
        previous.phase,
        previous.cf_minimum,
        previous.cf_candidate,
        previous.codec,
    )
    return Decision(
        window=report.window,
        epoch=previous.epoch + 1 if changed else previous.epoch,
        phase=new_phase,
        cf_minimum=new_minimum,
        cf_candidate=new_candidate,
        epsilon=previous.epsilon if epsilon is None else epsilon,
        rule=rule,
        reason=reason,
        candidates=previous.candidates if candidates is None else candidates,
        codec=new_codec,
        window_steps=previous.window_steps if window_steps is KEPT else window_steps,
        trial=trial,
    )


def unusable(previous: Decision, report: WindowReport) -> Decision:
    """Return ``previous`` again, because the window has no step that ran under it."""
    if report.phase == "fallback":
        why = "the ranks ran dense in fallback"
    else:
        why = f"none of its steps ran under decision {previous.epoch}"
    reason = f"Window {report.window} says nothing here: {why}."
    return next_decision(previous, report, "unusable", reason, trial=previous.trial)
