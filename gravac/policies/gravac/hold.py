"""GraVAC once it has settled: step down when the gain falls, measure again when the world has changed.

Phase hold of the fixed variant. The paper never leaves the level it settled on; this one may.
"""

from gravac.policies.base import Verdict
from gravac.policies.gravac import table
from gravac.policies.gravac.settings import Reference
from gravac.policies.gravac.turn import Turn
from gravac.policies.measure import Measurement
from gravac.policies.wording import cf as name
from gravac.policies.wording import kept, number, percent

DRIFT_WINDOWS = 2
"""Windows in a row that must be off: one may be a hiccup."""


def hold(turn: Turn) -> Verdict:
    """One more window at the level settled on."""
    settings, cf = turn.settings, turn.previous.cf_candidate
    gain, measured = turn.gain(cf), turn.seen.get(cf)
    if gain is not None and gain < settings.epsilon:
        return _scale_down(turn, cf, gain)
    if measured is None or gain is None:
        few = f"{turn.settled_steps(cf)} settled steps in window {turn.report.window}, too few to judge"
        return turn.stay("hold", f"Holding {name(cf)}: {few}.")
    if turn.state.reference is None:
        reference = Reference(
            window=turn.report.window, samples_per_second=measured.samples_per_second, gain=gain
        )
        reason = f"Holding {name(cf)}: settled at {_rates(measured, gain)}."
        return turn.stay("hold", reason, reference=reference, drifting=0)
    return _watch(turn, turn.state.reference, measured, gain)


def _watch(turn: Turn, reference: Reference, measured: Measurement, gain: float) -> Verdict:
    settings = turn.settings
    speed_off = _off(measured.samples_per_second, reference.samples_per_second)
    gain_off = _off(gain, reference.gain)
    if max(speed_off, gain_off) <= settings.drift_ratio:
        return turn.stay("hold", f"Holding {name(measured.cf)}: {_rates(measured, gain)}.", drifting=0)
    if speed_off >= gain_off:
        now, was = number(measured.samples_per_second), number(reference.samples_per_second)
        moved = f"{now} samples/s, {percent(speed_off)} off the {was} it settled at"
    else:
        moved = f"gain {kept(gain)}, {percent(gain_off)} off the {kept(reference.gain)} it settled at"
    drifting = turn.state.drifting + 1
    age = turn.report.window - reference.window
    if drifting >= DRIFT_WINDOWS and age >= settings.cooldown_windows:
        reason = (
            f"Drift while holding {name(measured.cf)}: {moved}, for {drifting} windows. "
            "Measuring again, from dense up."
        )
        return turn.measure_again("reexplore", reason, windows=1)
    return turn.stay("hold", f"Holding {name(measured.cf)}, but drifting: {moved}.", drifting=drifting)


def _scale_down(turn: Turn, cf: float, gain: float) -> Verdict:
    lower = turn.neighbour(cf)
    reason = (
        f"The gain of {name(cf)} fell to {kept(gain)}, below ε {kept(turn.settings.epsilon)}: one rung down, "
        f"to {name(lower)}."
    )
    rows = table.mark(table.mark(turn.table, cf, "too_strong", gain), lower, "chosen")
    return turn.go(
        "scale_down", reason, minimum=lower, candidate=lower, rows=rows, reference=None, drifting=0
    )


def _rates(measured: Measurement, gain: float) -> str:
    speed = number(measured.samples_per_second)
    if measured.cf == 1.0:
        return f"{speed} samples/s"
    return f"{speed} samples/s at gain {kept(gain)}, {number(measured.samples_per_second * gain)} useful"


def _off(now: float, then: float) -> float:
    """Relative distance; a value that was 0 is off by all when it no longer is."""
    if then == 0:
        return 0.0 if now == 0 else 1.0
    return abs(now - then) / then
