"""GraVAC's search, repaired: a dense baseline, then up the ladder, one rung at a time, while a rung above can win.

These are phases warmup and explore of the fixed variant. T_comp = T_sys · gain throughout (GraVAC §III-B). A search
tries each rung at most once. What the rungs above can reach is limited by the gain, which falls with CF, and by the
samples/s of a step that never waits for the network.
"""

from gravac.policies import candidates
from gravac.policies.base import Verdict
from gravac.policies.candidates import Candidates, useful
from gravac.policies.paper.evaluation import HEADROOM, MIN_SETTLED, NOISE, Evaluation
from gravac.policies.paper.settings import Left, PaperSearch
from gravac.policies.windows import MOST, WindowMeasurement
from gravac.protocol import KnownRule
from gravac.wording import format_cf, format_gain, format_number, format_percent, format_seconds

PATIENCE = 2
"""Further windows for a candidate that had too few settled steps."""


def warmup(evaluation: Evaluation) -> Verdict:
    """Count dense windows. After the last, stay dense if the network hardly matters, else try the first rung."""
    settings, dense, left = evaluation.settings, evaluation.measured.get(1.0), evaluation.state.warmup_left
    if evaluation.ended is not None and evaluation.previous.trial is not None:
        return _too_long(evaluation, evaluation.ended, evaluation.previous.trial.cf)
    if dense is None:
        reason = (
            f"Only {evaluation.settled_steps(1.0)} settled dense steps in window {evaluation.report.window}, "
            f"{MIN_SETTLED} are needed: measuring the dense baseline again. "
            "If this repeats, make the window longer."
        )
        previous = evaluation.previous
        return evaluation.decide("warmup", reason, window_steps=previous.window_steps, trial=previous.trial)
    if evaluation.state.looking is not None:
        back = _looked(evaluation, dense, evaluation.state.looking)
        if back is not None:
            return back
    if left > 1:
        reason = (
            f"Dense baseline: {format_number(dense.samples_per_second)} samples/s, {_waiting(dense)}; "
            f"{left - 1} more dense {'window' if left == 2 else 'windows'}."
        )
        return evaluation.decide("warmup", reason, warmup_left=left - 1)
    if dense.exposed_ratio is not None and dense.exposed_ratio < HEADROOM:
        reason = (
            f"Only {format_percent(dense.exposed_ratio)} of a dense step waits for the network, below "
            f"{format_percent(HEADROOM)}: no CF can pay; staying dense."
        )
        rows = candidates.mark(evaluation.candidates, 1.0, "chosen")
        return evaluation.decide("no_headroom", reason, phase="hold", rows=rows, warmup_left=0)
    first = settings.rungs[1]
    room = (
        f"The dense baseline is {format_number(dense.samples_per_second)} samples/s, {_waiting(dense)}: "
        "there is room to gain."
    )
    hopeless = evaluation.hopeless(first)
    if hopeless is not None:
        rows = candidates.mark(evaluation.candidates, first, "too_strong", hopeless)
        why = f"{room} But {_unreachable(evaluation, first, hopeless)}"
        return finish(evaluation, "too_strong", why, rows)
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
        search=evaluation.state.search.model_copy(update={"free_rate": evaluation.dense_free_rate()}),
    )


def _too_long(evaluation: Evaluation, took: float, held: float) -> Verdict:
    """Go back to the CF that was held: the step that ended the trial says what a dense one takes."""
    steps, samples = evaluation.steps, evaluation.report.samples
    rate = min(MOST, (samples or steps) / steps / took) if took > 0.0 else None
    dense = candidates.row(evaluation.candidates, 1.0).model_copy(
        update={
            "gain": 1.0,
            "samples_per_second": rate,
            "useful_samples_per_second": rate,
            "window": evaluation.report.window,
        }
    )
    rows = (dense, *(row for row in evaluation.candidates if row.cf != 1.0))
    return evaluation.decide(
        "hold",
        f"A dense step took {format_seconds(took)}, too long to measure more of them: holding {format_cf(held)}.",
        phase="hold",
        minimum=held,
        candidate=held,
        rows=candidates.mark(rows, held, "chosen"),
        warmup_left=0,
        reference=None,
        looking=None,
        looks=evaluation.state.looks + 1,
    )


def _looked(evaluation: Evaluation, dense: WindowMeasurement, held: float) -> Verdict | None:
    """Go back to the CF that was held, unless dense steps became faster: then begin a search, and return None."""
    state, rows = evaluation.state, evaluation.candidates
    before, now = (
        candidates.row(evaluation.previous.candidates, 1.0).samples_per_second,
        dense.samples_per_second,
    )
    rate = f"Dense steps give {format_number(now)} samples/s"
    if before is not None and now <= before * (1 + NOISE):
        return evaluation.decide(
            "hold",
            f"{rate}, no more than the {format_number(before)} before: holding {format_cf(held)}.",
            phase="hold",
            minimum=held,
            candidate=held,
            rows=rows,
            warmup_left=0,
            reference=None,
            looking=None,
            looks=state.looks + 1,
        )
    evaluation.candidates = candidates.update(candidates.untried(evaluation.settings.rungs), {1.0: dense})
    evaluation.state = state.model_copy(
        update={
            "looking": None,
            "looks": 0,
            "reference": None,
            "search": PaperSearch(since=evaluation.report.window),
        }
    )
    return None


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
    keeps = f"{format_cf(cf)} keeps {format_gain(gain)} of the gradient (≥ ε {format_gain(settings.epsilon)})"
    pays, rates = _rates(evaluation, rows)
    stop = _stop(evaluation, rows, gain, f"{keeps} and gives {rates}")
    if stop is not None:
        return finish(evaluation, "saturated", stop, rows)
    if cf == settings.rungs[-1]:
        return finish(evaluation, "top", f"{keeps} and gives {rates}, and is the end of the ladder.", rows)
    return _climb(evaluation, rows, f"{keeps} and gives {rates}", pays)


def _rates(evaluation: Evaluation, rows: Candidates) -> tuple[bool, str]:
    """Return whether the candidate is clearly the best so far, and a comparison with the best of the others."""
    here = candidates.row(rows, evaluation.previous.cf_candidate)
    best = max((row for row in evaluation.compared(rows) if row.cf != here.cf), key=useful)
    rates = (
        f"{format_number(useful(here))} useful samples/s against {format_number(useful(best))} {_at(best.cf)}"
    )
    return useful(here) > useful(best) * (1 + NOISE), rates


def _at(cf: float) -> str:
    """Return where a rate was measured, in words."""
    return "dense" if cf == 1.0 else f"at {format_cf(cf)}"


def _stop(evaluation: Evaluation, rows: Candidates, gain: float, evidence: str) -> str | None:
    """Return why no rung above can win, or None if one can or the candidate is the last."""
    settings, cf = evaluation.settings, evaluation.previous.cf_candidate
    if cf == settings.rungs[-1]:
        return None
    limit = evaluation.limit(settings.rungs[settings.rungs.index(cf) + 1], gain)
    best = useful(evaluation.choose(rows)[0])
    if limit is None or limit > best * (1 + settings.omega):
        return None
    return (
        f"{evidence}. Even with a free network no stronger CF can give more than {format_number(limit)}, so none can "
        f"beat {format_number(best)} by more than {format_percent(settings.omega)}."
    )


def _climb(evaluation: Evaluation, rows: Candidates, evidence: str, pays: bool) -> Verdict:
    rungs, cf, minimum = (
        evaluation.settings.rungs,
        evaluation.previous.cf_candidate,
        evaluation.previous.cf_minimum,
    )
    up = rungs[rungs.index(cf) + 1]
    hopeless = evaluation.hopeless(up)
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
    settings, state = evaluation.settings, evaluation.state
    chosen, best = evaluation.choose(rows)
    if chosen.cf != best.cf:
        choice = (
            f"{_holding(chosen.cf)}: its {format_number(useful(chosen))} is within "
            f"{format_percent(settings.omega)} of the best ({format_number(useful(best))} {_at(best.cf)}), "
            "and it compresses less."
        )
    elif chosen.cf == 1.0 and all(row.verdict != "passed" for row in rows if row.cf > 1.0):
        choice = "Staying dense: no CF passed."
    elif chosen.cf == 1.0:
        choice = f"{_holding(1.0)}: its {format_number(useful(chosen))} samples/s beat every CF that passed."
    else:
        choice = f"{_holding(chosen.cf)}: its {format_number(useful(chosen))} useful samples/s are the best measured."
    for row in rows:  # what was held before this search, if it began in hold
        if row.verdict == "chosen":
            rows = candidates.mark(rows, row.cf, "passed")
    back = chosen.cf == state.search.held
    return evaluation.decide(
        rule,
        f"{why} {choice}",
        phase="hold",
        minimum=chosen.cf,
        candidate=chosen.cf,
        rows=candidates.mark(rows, chosen.cf, "chosen"),
        extended=0,
        reference=state.reference if back else None,
        drifting=0,
        low=0,
        fitting=0,
        promising=0,
        search=state.search.model_copy(
            update={
                "waited": 0,
                "misses": state.search.misses + 1 if back else 0,
                "left": left(evaluation, chosen.cf),
            }
        ),
    )


def left(evaluation: Evaluation, cf: float) -> Left | None:
    """Return the rung above ``cf`` with what the curve promises of it now; None at the end of the ladder."""
    above = [rung for rung in evaluation.settings.rungs if rung > cf]
    return Left(cf=above[0], promised=evaluation.promised(above[0])) if above else None


def _unreachable(evaluation: Evaluation, cf: float, gain: float) -> str:
    return (
        f"{format_cf(cf)} would keep at most {format_gain(gain)}, below ε {format_gain(evaluation.settings.epsilon)}, "
        "by the curve of this window: not tried."
    )


def _extend(evaluation: Evaluation, cf: float) -> Verdict:
    extended = evaluation.state.extended
    few = f"{format_cf(cf)} ran only {evaluation.settled_steps(cf)} settled steps in window {evaluation.report.window}"
    if extended < PATIENCE:
        reason = f"{few}, {MIN_SETTLED} are needed to judge it: try it for another window."
        return evaluation.decide("extend", reason, extended=extended + 1)
    why = f"{few} after {extended + 1} windows, {MIN_SETTLED} are needed: it does not pass."
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


def _waiting(dense: WindowMeasurement) -> str:
    if dense.exposed_ratio is None:
        return "its wait for the network is not known"
    return f"{format_percent(dense.exposed_ratio)} of a step waits for the network"


def _holding(cf: float) -> str:
    return "Staying dense" if cf == 1.0 else f"Holding {format_cf(cf)}"
