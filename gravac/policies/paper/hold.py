"""GraVAC's hold: step down if the gain falls, try a stronger CF again when it may fit, measure all again after a drift.

This is phase hold of the fixed variant. The paper never leaves the CF that it has chosen; this one may. No single
window makes it leave.
"""

from typing import Any

from gravac.policies import candidates, trials
from gravac.policies.base import Verdict
from gravac.policies.candidates import useful
from gravac.policies.paper.evaluation import CLEARLY, HEADROOM, NOISE, Evaluation
from gravac.policies.paper.explore import left
from gravac.policies.paper.settings import PaperSearch, Reference
from gravac.policies.windows import WindowMeasurement
from gravac.wording import format_cf, format_gain, format_number, format_percent, format_seconds

DRIFT = 0.5
"""Share by which a step rate or gain must change to be a drift."""
COOLDOWN_WINDOWS = 10
"""Windows to hold at least, before a drift starts a new search."""
DRIFT_WINDOWS = 2
"""Windows in a row that must drift: a single one may be an accident."""
LOW_WINDOWS = 2
"""Windows in a row whose gain must be below ε before it steps down."""
FITTING_WINDOWS = 2
"""Windows in a row in which a stronger CF must be able to win before it is tried again."""
DOUBLINGS = 4
"""How often the wait between tries in vain doubles, at most."""
FREED, FREED_WINDOWS = 2.0, 2
"""The wait for the network has fallen when it is this many times smaller, for so many windows in a row."""
FREED_RATIO = 0.08
"""Share of a step by which the wait of a dense one must have fallen to matter."""
FIRST_LOOK = 50
"""Windows in hold before dense is measured again; twice as many after each time that changed nothing."""


def hold(evaluation: Evaluation) -> Verdict:
    """Decide after one more window at the CF that is held."""
    settings, cf = evaluation.settings, evaluation.previous.cf_candidate
    gain, measured = evaluation.gain(cf), evaluation.measured.get(cf)
    if gain is not None and gain < settings.epsilon:
        return _too_low(evaluation, cf, gain)
    if measured is None or gain is None:
        few = f"{evaluation.settled_steps(cf)} settled steps in window {evaluation.report.window}, too few to judge"
        return _stay(evaluation, f"Holding {format_cf(cf)}: {few}.")
    if evaluation.state.reference is None:
        reference = Reference(
            window=evaluation.report.window,
            samples_per_second=measured.samples_per_second,
            gain=gain,
            exposed_seconds=measured.exposed_seconds,
        )
        reason = f"Holding {format_cf(cf)}: settled at {_rates(measured, gain)}."
        return _stay(evaluation, reason, reference=reference, drifting=0, low=0)
    return _watch(evaluation, evaluation.state.reference, measured, gain)


def _watch(evaluation: Evaluation, reference: Reference, measured: WindowMeasurement, gain: float) -> Verdict:
    speed_off = _off(measured.samples_per_second, reference.samples_per_second)
    gain_off = _off(gain, reference.gain)
    if max(speed_off, gain_off) <= DRIFT:
        return _look(evaluation, reference, measured) or _keep_or_climb(evaluation, measured, gain)
    if speed_off >= gain_off:
        now, was = format_number(measured.samples_per_second), format_number(reference.samples_per_second)
        moved = f"{now} samples/s, {format_percent(speed_off)} off the {was} it settled at"
    else:
        now, was = format_gain(gain), format_gain(reference.gain)
        moved = f"gain {now}, {format_percent(gain_off)} off the {was} it settled at"
    drifting = evaluation.state.drifting + 1
    age = evaluation.report.window - reference.window
    if drifting >= DRIFT_WINDOWS and age >= COOLDOWN_WINDOWS:
        return _drifted(evaluation, reference, measured, f"{moved}, for {drifting} windows")
    reason = f"Holding {format_cf(measured.cf)}, but drifting: {moved}."
    return _stay(evaluation, reason, drifting=drifting, low=0, fitting=0, promising=0)


def _drifted(
    evaluation: Evaluation, reference: Reference, measured: WindowMeasurement, moved: str
) -> Verdict:
    """Measure all again, from dense up; where dense steps would cost too much, hold what is known to work."""
    cf, drift = measured.cf, f"Drift while holding {format_cf(measured.cf)}: {moved}."
    worst = _dense_seconds(evaluation, reference, measured)
    if cf == 1.0 or trials.affordable(worst, measured.step_seconds, evaluation.left):
        trial: dict[str, Any] = {}
        if cf > 1.0:
            trial = {"window_steps": trials.TRIAL_STEPS, **evaluation.trial(worst, measured.step_seconds, cf)}
        reason = f"{drift} Measuring again, from dense up."
        return evaluation.restart("reexplore", reason, windows=1, **trial)
    others = (row for row in evaluation.candidates if row.cf != 1.0)
    search = evaluation.state.search.model_copy(update={"since": evaluation.report.window, "free_rate": None})
    return _stay(
        evaluation,
        f"{drift} Dense steps may take {format_seconds(worst)}, more than a trial may cost by now: holding it.",
        rows=(*candidates.untried((1.0,)), *others),
        searched=search,
        reference=None,
        drifting=0,
        low=0,
        fitting=0,
        promising=0,
    )


def _dense_seconds(evaluation: Evaluation, reference: Reference, measured: WindowMeasurement) -> float:
    """Return about what a dense step takes: as last measured, its wait changed as that of the held CF did."""
    waits = measured.exposed_seconds
    own = measured.step_seconds - (waits or 0.0)
    last = evaluation.seconds(candidates.row(evaluation.candidates, 1.0).samples_per_second)
    if last is None:
        return own + (waits or 0.0) * evaluation.fewer(measured.cf)
    times = waits / reference.exposed_seconds if waits and reference.exposed_seconds else 1.0
    return own + max(0.0, last - own) * times


def _look(evaluation: Evaluation, reference: Reference, measured: WindowMeasurement) -> Verdict | None:
    """Measure dense again, once the wait for the network has clearly fallen, and at long intervals; else None.

    What a stronger CF gains shows in hold, what less compression would gain on a faster network does not.
    """
    cf, state = measured.cf, evaluation.state
    if cf == 1.0:
        return None
    was, now = reference.exposed_seconds, measured.exposed_seconds
    fell = (
        was is not None
        and now is not None
        and was > FREED * now
        and (was - now) * evaluation.fewer(cf) > FREED_RATIO * measured.step_seconds
    )
    evaluation.state = state = state.model_copy(update={"freed": state.freed + 1 if fell else 0})
    if fell and state.freed >= FREED_WINDOWS and was is not None and now is not None:
        why = f"Steps wait {format_seconds(now)} for the network, before {format_seconds(was)}"
    elif state.unlooked + 1 >= FIRST_LOOK << min(state.looks, DOUBLINGS):
        why = f"Dense steps were last measured {state.unlooked + 1} windows ago"
    else:
        return None
    worst = _dense_seconds(evaluation, reference, measured)
    if not trials.affordable(worst, measured.step_seconds, evaluation.left):
        return None
    return evaluation.decide(
        "reexplore",
        f"{why}: measuring them again, while {format_cf(cf)} is held.",
        phase="warmup",
        minimum=1.0,
        candidate=1.0,
        window_steps=trials.TRIAL_STEPS,
        warmup_left=1,
        extended=0,
        drifting=0,
        low=0,
        fitting=0,
        promising=0,
        freed=0,
        looking=cf,
        unlooked=0,
        **evaluation.trial(worst, measured.step_seconds, cf),
    )


def _keep_or_climb(evaluation: Evaluation, measured: WindowMeasurement, gain: float) -> Verdict:
    """Hold, or try a stronger CF again."""
    settings, cf = evaluation.settings, measured.cf
    reason = f"Holding {format_cf(measured.cf)}: {_rates(measured, gain)}."
    up = _able_to_win(evaluation, measured, gain)
    if up is None:
        return _stay(evaluation, reason, drifting=0, low=0, fitting=0, promising=0)
    fitting = evaluation.state.fitting + 1
    promising = evaluation.state.promising + 1 if _promises_more(evaluation, up) else 0
    wait = settings.retry_windows * 2 ** min(evaluation.state.search.misses, DOUBLINGS)
    due = fitting >= FITTING_WINDOWS and evaluation.state.search.waited + 1 >= wait
    if not due and promising < FITTING_WINDOWS:
        return _stay(evaluation, reason, drifting=0, low=0, fitting=fitting, promising=promising)
    rows = candidates.mark(evaluation.candidates, cf, "chosen")
    search = evaluation.state.search.model_copy(
        update={"since": evaluation.report.window, "held": cf, "free_rate": evaluation.dense_free_rate()}
    )
    return evaluation.decide(
        "climb",
        f"{reason} {_why(evaluation, up)}: try {format_cf(up)}.",
        phase="explore",
        minimum=up if cf == 1.0 else cf,
        candidate=up,
        rows=candidates.mark(rows, up, "trying"),
        extended=0,
        drifting=0,
        low=0,
        fitting=0,
        promising=0,
        search=search,
    )


def _able_to_win(evaluation: Evaluation, measured: WindowMeasurement, gain: float) -> float | None:
    """Return the lowest rung above that can keep ε and beat the CF that is held, by what is known; None without one."""
    settings, share = evaluation.settings, measured.exposed_ratio
    if measured.cf == 1.0 and share is not None and share < HEADROOM:
        return None
    needed = useful(candidates.row(evaluation.candidates, measured.cf)) * (1 + NOISE)
    for up in settings.rungs[settings.rungs.index(measured.cf) + 1 :]:
        promised, limit = evaluation.promised(up), evaluation.limit(up, gain)
        fits = promised is None or promised >= settings.epsilon
        if fits and (limit is None or limit > needed):
            return up
    return None


def _promises_more(evaluation: Evaluation, up: float) -> bool:
    """Return whether the curve promises ``up`` clearly more gain than at the end of the last search."""
    promised, then = evaluation.promised(up), evaluation.state.search.left
    if promised is None or then is None or then.promised is None or then.cf != up:
        return False
    return promised * CLEARLY >= then.promised


def _why(evaluation: Evaluation, up: float) -> str:
    promised = evaluation.promised(up)
    if promised is None:
        age = evaluation.state.search.waited + 1
        return f"The last search ended {age} windows ago and a stronger CF may win"
    least = format_gain(evaluation.settings.epsilon)
    return (
        f"The curve promises {format_cf(up)} a gain of {format_gain(promised)} (≥ ε {least}), enough to win"
    )


def _too_low(evaluation: Evaluation, cf: float, gain: float) -> Verdict:
    """Hold on after one window with too little gain; step down after the next."""
    low, least = evaluation.state.low + 1, format_gain(evaluation.settings.epsilon)
    if low < LOW_WINDOWS:
        reason = (
            f"Holding {format_cf(cf)}, though its gain fell to {format_gain(gain)}, below ε {least}: "
            "one such window may be an accident."
        )
        return _stay(evaluation, reason, low=low, drifting=0, fitting=0, promising=0)
    search = evaluation.state.search
    below = reversed([rung for rung in evaluation.settings.rungs if rung < cf])
    lower = next((rung for rung in below if evaluation.hopeless(rung) is None), 1.0)
    search = search.model_copy(
        update={"waited": 0, "misses": search.misses + 1, "left": left(evaluation, lower)}
    )
    reason = (
        f"The gain of {format_cf(cf)} fell to {format_gain(gain)}, below ε {least}: {low} windows in a row, down, to "
        f"{format_cf(lower)}."
    )
    rows = candidates.mark(candidates.mark(evaluation.candidates, cf, "too_strong", gain), lower, "chosen")
    return evaluation.decide(
        "scale_down",
        reason,
        minimum=lower,
        candidate=lower,
        rows=rows,
        reference=None,
        drifting=0,
        low=0,
        fitting=0,
        promising=0,
        search=search,
    )


def _stay(evaluation: Evaluation, reason: str, searched: PaperSearch | None = None, **state: Any) -> Verdict:
    """Hold for another window. ``searched``: the last search. ``state``: fields of the state that change."""
    search = searched or evaluation.state.search
    waiting = search.model_copy(update={"waited": search.waited + 1})
    unlooked = evaluation.state.unlooked + 1
    return evaluation.decide("hold", reason, search=waiting, unlooked=unlooked, **state)


def _rates(measured: WindowMeasurement, gain: float) -> str:
    speed = format_number(measured.samples_per_second)
    if measured.cf == 1.0:
        return f"{speed} samples/s"
    return f"{speed} samples/s at gain {format_gain(gain)}, {format_number(measured.samples_per_second * gain)} useful"


def _off(now: float, then: float) -> float:
    """Return the relative distance. A value that was 0 and no longer is has distance 1."""
    if then == 0:
        return 0.0 if now == 0 else 1.0
    return abs(now - then) / then
