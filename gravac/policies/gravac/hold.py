"""GraVAC's hold: step down if the gain falls, and measure again if step time or gain drift.

This is phase hold of the fixed variant. The paper never leaves the CF that it has chosen; this one may.
"""

from gravac.policies import candidates
from gravac.policies.base import Verdict
from gravac.policies.gravac.evaluation import Evaluation
from gravac.policies.gravac.settings import Reference
from gravac.policies.windows import Measurement
from gravac.wording import format_cf, format_gain, format_number, format_percent

DRIFT_WINDOWS = 2
"""Windows in a row that must drift: a single one may be an accident."""


def hold(evaluation: Evaluation) -> Verdict:
    """Decide after one more window at the CF that is held."""
    settings, cf = evaluation.settings, evaluation.previous.cf_candidate
    gain, measured = evaluation.gain(cf), evaluation.measured.get(cf)
    if gain is not None and gain < settings.epsilon:
        return _scale_down(evaluation, cf, gain)
    if measured is None or gain is None:
        few = f"{evaluation.settled_steps(cf)} settled steps in window {evaluation.report.window}, too few to judge"
        return evaluation.decide("hold", f"Holding {format_cf(cf)}: {few}.")
    if evaluation.state.reference is None:
        reference = Reference(
            window=evaluation.report.window, samples_per_second=measured.samples_per_second, gain=gain
        )
        reason = f"Holding {format_cf(cf)}: settled at {_rates(measured, gain)}."
        return evaluation.decide("hold", reason, reference=reference, drifting=0)
    return _watch(evaluation, evaluation.state.reference, measured, gain)


def _watch(evaluation: Evaluation, reference: Reference, measured: Measurement, gain: float) -> Verdict:
    settings = evaluation.settings
    speed_off = _off(measured.samples_per_second, reference.samples_per_second)
    gain_off = _off(gain, reference.gain)
    if max(speed_off, gain_off) <= settings.drift_ratio:
        return evaluation.decide(
            "hold", f"Holding {format_cf(measured.cf)}: {_rates(measured, gain)}.", drifting=0
        )
    if speed_off >= gain_off:
        now, was = format_number(measured.samples_per_second), format_number(reference.samples_per_second)
        moved = f"{now} samples/s, {format_percent(speed_off)} off the {was} it settled at"
    else:
        now, was = format_gain(gain), format_gain(reference.gain)
        moved = f"gain {now}, {format_percent(gain_off)} off the {was} it settled at"
    drifting = evaluation.state.drifting + 1
    age = evaluation.report.window - reference.window
    if drifting >= DRIFT_WINDOWS and age >= settings.cooldown_windows:
        reason = (
            f"Drift while holding {format_cf(measured.cf)}: {moved}, for {drifting} windows. "
            "Measuring again, from dense up."
        )
        return evaluation.restart("reexplore", reason, windows=1)
    return evaluation.decide(
        "hold", f"Holding {format_cf(measured.cf)}, but drifting: {moved}.", drifting=drifting
    )


def _scale_down(evaluation: Evaluation, cf: float, gain: float) -> Verdict:
    lower = evaluation.rung_below(cf)
    reason = (
        f"The gain of {format_cf(cf)} fell to {format_gain(gain)}, below ε {format_gain(evaluation.settings.epsilon)}: "
        f"one rung down, to {format_cf(lower)}."
    )
    rows = candidates.mark(candidates.mark(evaluation.candidates, cf, "too_strong", gain), lower, "chosen")
    return evaluation.decide(
        "scale_down", reason, minimum=lower, candidate=lower, rows=rows, reference=None, drifting=0
    )


def _rates(measured: Measurement, gain: float) -> str:
    speed = format_number(measured.samples_per_second)
    if measured.cf == 1.0:
        return f"{speed} samples/s"
    return f"{speed} samples/s at gain {format_gain(gain)}, {format_number(measured.samples_per_second * gain)} useful"


def _off(now: float, then: float) -> float:
    """Return the relative distance. A value that was 0 and no longer is has distance 1."""
    if then == 0:
        return 0.0 if now == 0 else 1.0
    return abs(now - then) / then
