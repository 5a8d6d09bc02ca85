"""What one window measured: gain, samples per second and the wait for the network, per CF."""

import math
from dataclasses import dataclass

from gravac.policies.succession import counting_levels
from gravac.protocol import Decision, WindowReport

MOST = 1e15
"""Samples per second that records can carry; only a broken clock gets there."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One CF in one window. ``gain`` is null until the ranks have measured one; dense keeps everything (1).

    T_sys = samples of one step (all ranks) / median seconds of a settled step on rank 0.
    """

    cf: float
    window: int
    settled_steps: int
    gain: float | None
    step_seconds: float
    exposed_seconds: float | None
    samples_per_second: float

    @property
    def useful_samples_per_second(self) -> float | None:
        """T_comp = T_sys · gain, the paper's compression throughput (reference: Alg. 1)."""
        return None if self.gain is None else self.samples_per_second * self.gain

    @property
    def exposed_ratio(self) -> float | None:
        """Share of the step spent waiting for the network."""
        return None if self.exposed_seconds is None else self.exposed_seconds / self.step_seconds


def gain_of(report: WindowReport, cf: float) -> float | None:
    """Smoothed gain of ``cf`` at the end of the window, at most 1; dense is 1; null when not measured."""
    if cf == 1.0:
        return 1.0
    return next((min(1.0, row.gain) for row in report.gains if row.cf == cf), None)


def foreseen(report: WindowReport, cf: float) -> float | None:
    """About the most the job's codec will keep at ``cf``, which it need not have tried; null when it cannot be told.

    Read off the window's curve at the nearest weaker CF on it. The curve is for the residual of now, and a stronger CF
    makes the residual grow, so what is reached is less: of gain .41 foreseen at 100x after a dense run, .18 came.
    """
    curve = report.curve
    if curve is None or not curve.own:
        return None
    step = min(len(curve.gains) - 1, math.floor(20 * math.log10(cf) + 1e-9))
    return curve.gains[step]


def measure(report: WindowReport, decision: Decision, min_settled: int) -> dict[float, Measurement]:
    """Every CF with at least ``min_settled`` settled steps under ``decision``, by CF.

    Samples per step come from the whole window, as trainers feed equal batches to all steps. Where the trainer's
    samples cannot be counted (0 reported) each step counts as one.
    """
    found: dict[float, Measurement] = {}
    steps = report.last_step - report.first_step + 1
    for level in counting_levels(report, decision):
        seconds = level.step_seconds_median
        if level.settled_steps < min_settled or seconds is None or seconds <= 0 or steps <= 0:
            continue
        found[level.cf] = Measurement(
            cf=level.cf,
            window=report.window,
            settled_steps=level.settled_steps,
            gain=gain_of(report, level.cf),
            step_seconds=seconds,
            exposed_seconds=level.exposed_seconds_median,
            samples_per_second=min(MOST, (report.samples or steps) / steps / seconds),
        )
    return found
