"""GraVAC as printed (Algorithm 1, ``CheckGraVAC``), defects included, to compare with and to study.

At the end of each window, in the printed order:

a. the multiplier grows (exponential: squared; geometric: doubled), capped so that multiplier x minimum <= cf_max;
b. if the gains of minimum and candidate are within omega, the minimum becomes multiplier x minimum. As (a) came
   first, that is a CF nobody has evaluated, and the multiplier is not re-based;
c. T_comp = T_sys x gain is kept per CF, the newest value overwriting the old. If the two largest are within omega,
   whichever CFs they belong to, the CF of the SECOND largest is returned; else the search goes on.

The paper leaves some things open. Here a returned CF ends the search for good (its Fig. 10), with the gate's
minimum kept below it; the cap holds for every candidate, also right after (b); at cf_max it goes on measuring.
There is no dense baseline: T_comp of dense is known only if the gate sent dense steps.
"""

from gravac.policies import candidates
from gravac.policies.base import Verdict
from gravac.policies.candidates import Candidates, useful
from gravac.policies.paper.evaluation import Evaluation
from gravac.policies.paper.settings import GravacSettings, GravacState, geometric
from gravac.policies.windows import levels_under, measure, next_decision, unusable
from gravac.protocol import Candidate, Decision
from gravac.wording import format_cf, format_gain, format_number, format_percent

FIRST_MULTIPLIER = 2.0


def reachable(settings: GravacSettings) -> tuple[float, ...]:
    """Return every CF that the printed rules can reach: all multipliers are powers of two, up to the cap."""
    return (1.0, *geometric(settings.cf_min, settings.cf_max))


def start(settings: GravacSettings, epoch: int) -> Verdict:
    """Return minimum ``cf_min`` and twice that as the candidate."""
    candidate = _candidate(settings, settings.cf_min, FIRST_MULTIPLIER)
    decision = Decision(
        window=-1,
        epoch=epoch,
        phase="explore",
        cf_minimum=settings.cf_min,
        cf_candidate=candidate,
        epsilon=settings.epsilon,
        rule="start",
        reason=f"As printed: minimum {format_cf(settings.cf_min)}, first candidate {format_cf(candidate)}.",
        candidates=candidates.mark(candidates.untried(reachable(settings)), candidate, "trying"),
    )
    return Verdict(decision, GravacState.beginning(decision, 0, FIRST_MULTIPLIER))


def decide(evaluation: Evaluation) -> Verdict:
    """Run ``CheckGraVAC`` once."""
    settings, previous = evaluation.settings, evaluation.previous
    multiplier = evaluation.state.multiplier
    if multiplier is None or tuple(row.cf for row in previous.candidates) != reachable(settings):
        return _restart(evaluation)
    if not levels_under(evaluation.report, previous):
        decision = unusable(previous, evaluation.report)
        return Verdict(decision, evaluation.state.model_copy(update={"decision": decision}))
    rows = candidates.update(previous.candidates, measure(evaluation.report, previous, min_settled=1))
    if previous.phase == "hold":
        reason = f"The printed search has ended: holding {format_cf(previous.cf_candidate)}."
        return evaluation.decide("hold", reason, rows=rows)

    grown = multiplier * multiplier if settings.ladder == "exponential" else multiplier * 2.0
    minimum = previous.cf_minimum
    multiplier = min(grown, settings.cf_max / minimum)
    raised = _equal_gain(evaluation)
    if raised:
        minimum = _candidate(settings, minimum, multiplier)
    first, second = _two_best(rows)
    if first is not None and second is not None and _within(useful(first), useful(second), settings.omega):
        reason = (
            f"The two best T_comp, {format_number(useful(first))} at {format_cf(first.cf)} and "
            f"{format_number(useful(second))} at {format_cf(second.cf)}, are within {format_percent(settings.omega)}: "
            f"holding {format_cf(second.cf)}, the second best."
        )
        return evaluation.decide(
            "saturated",
            reason,
            phase="hold",
            minimum=min(minimum, second.cf),
            candidate=second.cf,
            rows=candidates.mark(rows, second.cf, "chosen"),
        )
    candidate = _candidate(settings, minimum, multiplier)
    return evaluation.decide(
        "extend" if candidate == previous.cf_candidate else "climb",
        _reason(evaluation, minimum, candidate, raised),
        minimum=minimum,
        candidate=candidate,
        rows=_judged(evaluation, rows, candidate),
        multiplier=multiplier,
    )


def _restart(evaluation: Evaluation) -> Verdict:
    fresh = start(evaluation.settings, evaluation.previous.epoch)
    decision = next_decision(
        evaluation.previous,
        evaluation.report,
        "reexplore",
        f"The settings are not those this job was started with. {fresh.decision.reason}",
        phase=fresh.decision.phase,
        minimum=fresh.decision.cf_minimum,
        candidate=fresh.decision.cf_candidate,
        candidates=fresh.decision.candidates,
        epsilon=evaluation.settings.epsilon,
    )
    return Verdict(decision, fresh.state.model_copy(update={"decision": decision}))


def _candidate(settings: GravacSettings, minimum: float, multiplier: float) -> float:
    # Not the smaller one of the two products: 1.7 · (900 / 1.7) is below 900, and no rung.
    return settings.cf_max if multiplier >= settings.cf_max / minimum else minimum * multiplier


def _equal_gain(evaluation: Evaluation) -> bool:
    lower, upper = (
        evaluation.gain(evaluation.previous.cf_minimum),
        evaluation.gain(evaluation.previous.cf_candidate),
    )
    return lower is not None and upper is not None and _within(upper, lower, evaluation.settings.omega)


def _within(value: float, base: float, omega: float) -> bool:
    """Return whether |value - base| / base <= omega; False for a base of 0."""
    return base > 0 and abs(value - base) / base <= omega


def _two_best(rows: Candidates) -> tuple[Candidate | None, Candidate | None]:
    known = sorted((row for row in rows if row.useful_samples_per_second is not None), key=useful)
    return (known[-1], known[-2]) if len(known) >= 2 else (None, None)


def _judged(evaluation: Evaluation, rows: Candidates, candidate: float) -> Candidates:
    tried = evaluation.previous.cf_candidate
    gain = evaluation.gain(tried)
    if gain is not None:
        passed = gain >= evaluation.settings.epsilon
        rows = candidates.mark(rows, tried, "passed" if passed else "too_strong", gain)
    return candidates.mark(rows, candidate, "trying")


def _reason(evaluation: Evaluation, minimum: float, candidate: float, raised: bool) -> str:
    tried = evaluation.previous.cf_candidate
    gain = evaluation.gain(tried)
    evidence = (
        f"{format_cf(tried)} was not measured"
        if gain is None
        else f"{format_cf(tried)} keeps {format_gain(gain)}"
    )
    floor = f", as much as the minimum, which becomes {format_cf(minimum)}" if raised else ""
    if candidate == tried:
        return f"{evidence}{floor}: at the upper bound, so {format_cf(candidate)} again."
    omega = format_percent(evaluation.settings.omega)
    return f"{evidence}{floor}; no two best T_comp within {omega}: try {format_cf(candidate)}."
