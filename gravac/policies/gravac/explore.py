"""GraVAC's search, repaired: a dense baseline, then up the ladder one rung at a time while it pays.

These are phases warmup and explore of the fixed variant. T_comp = T_sys · gain throughout (GraVAC §III-B).
"""

from gravac.policies import candidates
from gravac.policies.base import Verdict
from gravac.policies.candidates import Candidates, useful
from gravac.policies.gravac.evaluation import Evaluation
from gravac.policies.windows import MOST, Measurement, predicted_gain
from gravac.protocol import KnownRule
from gravac.wording import format_cf, format_gain, format_number, format_percent

_CLEARLY = 0.9
"""Share of ε below which a gain predicted gain counts as too little: curves move a little from step to step."""


def warmup(evaluation: Evaluation) -> Verdict:
    """Count dense windows. After the last, stay dense if the network hardly matters, else try the first rung."""
    settings, dense, left = evaluation.settings, evaluation.measured.get(1.0), evaluation.state.warmup_left
    if dense is None:
        reason = (
            f"Only {evaluation.settled_steps(1.0)} settled dense steps in window {evaluation.report.window}, "
            f"{settings.min_settled} are needed: measuring the dense baseline again. "
            "If this repeats, make the window longer."
        )
        return evaluation.decide("warmup", reason)
    if left > 1:
        reason = (
            f"Dense baseline: {format_number(dense.samples_per_second)} samples/s, {_waiting(dense)}; "
            f"{left - 1} more dense {'window' if left == 2 else 'windows'}."
        )
        return evaluation.decide("warmup", reason, warmup_left=left - 1)
    if dense.exposed_ratio is not None and dense.exposed_ratio < settings.headroom_ratio:
        reason = (
            f"Only {format_percent(dense.exposed_ratio)} of a dense step waits for the network, below "
            f"{format_percent(settings.headroom_ratio)}: no CF can pay; staying dense."
        )
        rows = candidates.mark(evaluation.candidates, 1.0, "chosen")
        return evaluation.decide("no_headroom", reason, phase="hold", rows=rows, warmup_left=0)
    first = settings.rungs[1]
    room = (
        f"The dense baseline is {format_number(dense.samples_per_second)} samples/s, {_waiting(dense)}: "
        "there is room to gain."
    )
    hopeless = _hopeless(evaluation, first)
    if hopeless is not None:
        rows = candidates.mark(evaluation.candidates, first, "too_strong", hopeless)
        return finish(
            evaluation, "too_strong", f"{room} But {_unreachable(evaluation, first, hopeless)}", rows
        )
    reason = f"{room} Try {format_cf(first)}."
    rows = candidates.mark(evaluation.candidates, first, "trying")
    return evaluation.decide(
        "explore",
        reason,
        phase="explore",
        minimum=first,
        candidate=first,
        rows=rows,
        warmup_left=0,
        extended=0,
    )


def explore(evaluation: Evaluation) -> Verdict:
    """Evaluate the candidate: too strong, not measured yet, no better than the rung below, or worth a climb."""
    settings, cf = evaluation.settings, evaluation.previous.cf_candidate
    gain, measured = evaluation.gain(cf), evaluation.measured.get(cf)
    if gain is not None and gain < settings.epsilon:
        kept, least = format_gain(gain), format_gain(settings.epsilon)
        why = f"{format_cf(cf)} keeps only {kept} of the gradient, below ε {least}."
        return finish(
            evaluation, "too_strong", why, candidates.mark(evaluation.candidates, cf, "too_strong", gain)
        )
    if measured is None or gain is None:
        return _extend(evaluation, cf)
    rows = candidates.mark(evaluation.candidates, cf, "passed")
    here, below = candidates.row(rows, cf), candidates.row(rows, evaluation.rung_below(cf))
    keeps = f"{format_cf(cf)} keeps {format_gain(gain)} of the gradient (≥ ε {format_gain(settings.epsilon)})"
    rates = f"{format_number(useful(here))} useful samples/s against {format_number(useful(below))} {_at(below.cf)}"
    ceiling = _ceiling(measured, gain)
    best = max(useful(row) for row in rows)
    if ceiling is not None and ceiling <= best * (1 + settings.omega_throughput):
        why = (
            f"{keeps} and gives {rates}. Even with a free network it would give {format_number(ceiling)}, "
            f"so no stronger CF can beat {format_number(best)} by more than "
            f"{format_percent(settings.omega_throughput)}."
        )
        return finish(evaluation, "saturated", why, rows)
    pays = useful(here) > useful(below) * (1 + settings.omega_throughput)
    if not pays and below.cf != 1.0:
        why = f"{format_cf(cf)} gives {rates}: no longer {format_percent(settings.omega_throughput)} more."
        return finish(evaluation, "saturated", why, rows)
    if cf == settings.rungs[-1]:
        return finish(evaluation, "top", f"{keeps} and gives {rates}, and is the end of the ladder.", rows)
    return _climb(evaluation, rows, f"{keeps} and gives {rates}", pays)


def _climb(evaluation: Evaluation, rows: Candidates, evidence: str, pays: bool) -> Verdict:
    rungs, cf, minimum = (
        evaluation.settings.rungs,
        evaluation.previous.cf_candidate,
        evaluation.previous.cf_minimum,
    )
    up = rungs[rungs.index(cf) + 1]
    hopeless = _hopeless(evaluation, up)
    if hopeless is not None:
        why = f"{evidence}. {_unreachable(evaluation, up, hopeless)}"
        return finish(evaluation, "too_strong", why, candidates.mark(rows, up, "too_strong", hopeless))
    link = ":" if pays else "; that does not pay yet, but a stronger CF may:"
    reason = f"{evidence}{link} try {format_cf(up)}."
    if _equal_gain(evaluation, minimum, cf):
        reason += (
            f" Its gain is within {format_percent(evaluation.settings.omega)} of {format_cf(minimum)}'s, "
            f"so {format_cf(cf)} is the new minimum."
        )
        minimum = cf
    return evaluation.decide(
        "climb", reason, minimum=minimum, candidate=up, rows=candidates.mark(rows, up, "trying"), extended=0
    )


def finish(evaluation: Evaluation, rule: KnownRule, why: str, rows: Candidates) -> Verdict:
    """End the search: hold the CF with the best T_comp of those that passed; on a tie the lower one."""
    settings = evaluation.settings
    chosen, best = candidates.choose(rows, settings.epsilon, settings.omega_throughput)
    if chosen.cf != best.cf:
        choice = (
            f"{_holding(chosen.cf)}: its {format_number(useful(chosen))} is within "
            f"{format_percent(settings.omega_throughput)} of the best ({format_number(useful(best))} {_at(best.cf)}), "
            "and it compresses less."
        )
    elif chosen.cf == 1.0 and all(row.verdict != "passed" for row in rows if row.cf > 1.0):
        choice = "Staying dense: no CF passed."
    elif chosen.cf == 1.0:
        choice = f"{_holding(1.0)}: its {format_number(useful(chosen))} samples/s beat every CF that passed."
    else:
        choice = f"{_holding(chosen.cf)}: its {format_number(useful(chosen))} useful samples/s are the best measured."
    return evaluation.decide(
        rule,
        f"{why} {choice}",
        phase="hold",
        minimum=chosen.cf,
        candidate=chosen.cf,
        rows=candidates.mark(rows, chosen.cf, "chosen"),
        extended=0,
        reference=None,
        drifting=0,
    )


def _hopeless(evaluation: Evaluation, cf: float) -> float | None:
    """Return the largest gain that an untried CF can reach if that is clearly below ε: no window is spent on it."""
    gain = predicted_gain(evaluation.report, cf)
    return gain if gain is not None and gain < _CLEARLY * evaluation.settings.epsilon else None


def _unreachable(evaluation: Evaluation, cf: float, gain: float) -> str:
    return (
        f"{format_cf(cf)} would keep at most {format_gain(gain)}, below ε {format_gain(evaluation.settings.epsilon)}, "
        "by the curve of this window: not tried."
    )


def _extend(evaluation: Evaluation, cf: float) -> Verdict:
    settings, extended = evaluation.settings, evaluation.state.extended
    few = f"{format_cf(cf)} ran only {evaluation.settled_steps(cf)} settled steps in window {evaluation.report.window}"
    if extended < settings.patience:
        reason = f"{few}, {settings.min_settled} are needed to judge it: try it for another window."
        return evaluation.decide("extend", reason, extended=extended + 1)
    why = f"{few} after {extended + 1} windows, {settings.min_settled} are needed: it does not pass."
    return finish(
        evaluation,
        "too_strong",
        why,
        candidates.mark(evaluation.candidates, cf, "too_strong", evaluation.gain(cf)),
    )


def _equal_gain(evaluation: Evaluation, minimum: float, candidate: float) -> bool:
    """Apply omega to the candidate just evaluated. (The printed order raises the minimum to the one after it.)"""
    lower, upper = evaluation.gain(minimum), evaluation.gain(candidate)
    if minimum == candidate or lower is None or upper is None or lower == 0:
        return False
    return abs(lower - upper) / lower <= evaluation.settings.omega


def _ceiling(measured: Measurement, gain: float) -> float | None:
    """Return the best T_comp that a stronger CF could reach: no wait for the network, and the gain of this one.

    None if the wait is not known, or is the whole step.
    """
    if measured.exposed_seconds is None or measured.exposed_seconds >= measured.step_seconds:
        return None
    free = measured.step_seconds - measured.exposed_seconds
    return min(MOST, measured.samples_per_second * measured.step_seconds / free * gain)


def _waiting(dense: Measurement) -> str:
    if dense.exposed_ratio is None:
        return "its wait for the network is not known"
    return f"{format_percent(dense.exposed_ratio)} of a step waits for the network"


def _at(cf: float) -> str:
    return "dense" if cf == 1.0 else f"at {format_cf(cf)}"


def _holding(cf: float) -> str:
    return "Staying dense" if cf == 1.0 else f"Holding {format_cf(cf)}"
