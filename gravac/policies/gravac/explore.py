"""GraVAC's search, repaired: a dense baseline, then up the ladder a rung at a time while it pays.

Phases warmup and explore of the fixed variant. T_comp = T_sys · gain throughout (GraVAC §III-B).
"""

from gravac.policies.base import Verdict
from gravac.policies.gravac import table
from gravac.policies.gravac.table import Table, useful
from gravac.policies.gravac.turn import Turn
from gravac.policies.measure import MOST, Measurement, foreseen
from gravac.policies.wording import cf as name
from gravac.policies.wording import kept, number, percent
from gravac.protocol import Rule

_CLEARLY = 0.9
"""Share of ε below which a gain foreseen counts as too little: curves move a little from step to step."""


def warmup(turn: Turn) -> Verdict:
    """Count dense windows; after the last, stay dense if the network is no matter, else try the first rung."""
    settings, dense, left = turn.settings, turn.seen.get(1.0), turn.state.warmup_left
    if dense is None:
        reason = (
            f"Only {turn.settled_steps(1.0)} settled dense steps in window {turn.report.window}, "
            f"{settings.min_settled} are needed: measuring the dense baseline again. "
            "If this repeats, make the window longer."
        )
        return turn.stay("warmup", reason)
    if left > 1:
        reason = (
            f"Dense baseline: {number(dense.samples_per_second)} samples/s, {_waiting(dense)}; "
            f"{left - 1} more dense {'window' if left == 2 else 'windows'}."
        )
        return turn.stay("warmup", reason, warmup_left=left - 1)
    if dense.exposed_ratio is not None and dense.exposed_ratio < settings.headroom_ratio:
        reason = (
            f"Only {percent(dense.exposed_ratio)} of a dense step waits for the network, below "
            f"{percent(settings.headroom_ratio)}: no CF can pay; staying dense."
        )
        rows = table.mark(turn.table, 1.0, "chosen")
        return turn.go("no_headroom", reason, phase="hold", rows=rows, warmup_left=0)
    first = settings.rungs[1]
    room = (
        f"The dense baseline is {number(dense.samples_per_second)} samples/s, {_waiting(dense)}: "
        "there is room to gain."
    )
    hopeless = _hopeless(turn, first)
    if hopeless is not None:
        rows = table.mark(turn.table, first, "too_strong", hopeless)
        return finish(turn, "too_strong", f"{room} But {_unreachable(turn, first, hopeless)}", rows)
    reason = f"{room} Try {name(first)}."
    rows = table.mark(turn.table, first, "trying")
    return turn.go(
        "explore",
        reason,
        phase="explore",
        minimum=first,
        candidate=first,
        rows=rows,
        warmup_left=0,
        extended=0,
    )


def explore(turn: Turn) -> Verdict:
    """Judge the candidate: too strong, not measured yet, no better than the rung below, or worth a climb."""
    settings, cf = turn.settings, turn.previous.cf_candidate
    gain, measured = turn.gain(cf), turn.seen.get(cf)
    if gain is not None and gain < settings.epsilon:
        why = f"{name(cf)} keeps only {kept(gain)} of the gradient, below ε {kept(settings.epsilon)}."
        return finish(turn, "too_strong", why, table.mark(turn.table, cf, "too_strong", gain))
    if measured is None or gain is None:
        return _extend(turn, cf)
    rows = table.mark(turn.table, cf, "passed")
    here, below = table.row(rows, cf), table.row(rows, turn.neighbour(cf))
    keeps = f"{name(cf)} keeps {kept(gain)} of the gradient (≥ ε {kept(settings.epsilon)})"
    rates = f"{number(useful(here))} useful samples/s against {number(useful(below))} {_at(below.cf)}"
    ceiling = _ceiling(measured, gain)
    best = max(useful(row) for row in rows)
    if ceiling is not None and ceiling <= best * (1 + settings.omega_throughput):
        why = (
            f"{keeps} and gives {rates}. Even with a free network it would give {number(ceiling)}, "
            f"so no stronger CF can beat {number(best)} by more than {percent(settings.omega_throughput)}."
        )
        return finish(turn, "saturated", why, rows)
    pays = useful(here) > useful(below) * (1 + settings.omega_throughput)
    if not pays and below.cf != 1.0:
        why = f"{name(cf)} gives {rates}: no longer {percent(settings.omega_throughput)} more."
        return finish(turn, "saturated", why, rows)
    if cf == settings.rungs[-1]:
        return finish(turn, "top", f"{keeps} and gives {rates}, and is the end of the ladder.", rows)
    return _climb(turn, rows, f"{keeps} and gives {rates}", pays)


def _climb(turn: Turn, rows: Table, evidence: str, pays: bool) -> Verdict:
    rungs, cf, minimum = turn.settings.rungs, turn.previous.cf_candidate, turn.previous.cf_minimum
    up = rungs[rungs.index(cf) + 1]
    hopeless = _hopeless(turn, up)
    if hopeless is not None:
        why = f"{evidence}. {_unreachable(turn, up, hopeless)}"
        return finish(turn, "too_strong", why, table.mark(rows, up, "too_strong", hopeless))
    link = ":" if pays else "; that does not pay yet, but a stronger CF may:"
    reason = f"{evidence}{link} try {name(up)}."
    if _equal_gain(turn, minimum, cf):
        reason += (
            f" Its gain is within {percent(turn.settings.omega)} of {name(minimum)}'s, so {name(cf)} is the "
            "new minimum."
        )
        minimum = cf
    return turn.go(
        "climb", reason, minimum=minimum, candidate=up, rows=table.mark(rows, up, "trying"), extended=0
    )


def finish(turn: Turn, rule: Rule, why: str, rows: Table) -> Verdict:
    """End the search: hold the CF with the best T_comp of those that passed, the lower one on a tie."""
    settings = turn.settings
    chosen, best = table.choose(rows, settings.epsilon, settings.omega_throughput)
    if chosen.cf != best.cf:
        choice = (
            f"{_holding(chosen.cf)}: its {number(useful(chosen))} is within "
            f"{percent(settings.omega_throughput)} of the best ({number(useful(best))} {_at(best.cf)}), "
            "and it compresses less."
        )
    elif chosen.cf == 1.0 and all(row.verdict != "passed" for row in rows if row.cf > 1.0):
        choice = "Staying dense: no CF passed."
    elif chosen.cf == 1.0:
        choice = f"{_holding(1.0)}: its {number(useful(chosen))} samples/s beat every CF that passed."
    else:
        choice = (
            f"{_holding(chosen.cf)}: its {number(useful(chosen))} useful samples/s are the best measured."
        )
    return turn.go(
        rule,
        f"{why} {choice}",
        phase="hold",
        minimum=chosen.cf,
        candidate=chosen.cf,
        rows=table.mark(rows, chosen.cf, "chosen"),
        extended=0,
        reference=None,
        drifting=0,
    )


def _hopeless(turn: Turn, cf: float) -> float | None:
    """What a CF not tried yet would keep at most, when that is clearly below ε: then no window is spent on it."""
    gain = foreseen(turn.report, cf)
    return gain if gain is not None and gain < _CLEARLY * turn.settings.epsilon else None


def _unreachable(turn: Turn, cf: float, gain: float) -> str:
    return (
        f"{name(cf)} would keep at most {kept(gain)}, below ε {kept(turn.settings.epsilon)}, "
        "by the curve of this window: not tried."
    )


def _extend(turn: Turn, cf: float) -> Verdict:
    settings, extended = turn.settings, turn.state.extended
    few = f"{name(cf)} ran only {turn.settled_steps(cf)} settled steps in window {turn.report.window}"
    if extended < settings.patience:
        reason = f"{few}, {settings.min_settled} are needed to judge it: try it for another window."
        return turn.stay("extend", reason, extended=extended + 1)
    why = f"{few} after {extended + 1} windows, {settings.min_settled} are needed: it does not pass."
    return finish(turn, "too_strong", why, table.mark(turn.table, cf, "too_strong", turn.gain(cf)))


def _equal_gain(turn: Turn, minimum: float, candidate: float) -> bool:
    """Omega on the candidate just evaluated (the printed order raises the minimum to the one after it)."""
    lower, upper = turn.gain(minimum), turn.gain(candidate)
    if minimum == candidate or lower is None or upper is None or lower == 0:
        return False
    return abs(lower - upper) / lower <= turn.settings.omega


def _ceiling(measured: Measurement, gain: float) -> float | None:
    """Best T_comp any stronger CF could reach: no wait for the network at all, and no less gain than here.

    Null when the wait is not known, or is the whole step.
    """
    if measured.exposed_seconds is None or measured.exposed_seconds >= measured.step_seconds:
        return None
    free = measured.step_seconds - measured.exposed_seconds
    return min(MOST, measured.samples_per_second * measured.step_seconds / free * gain)


def _waiting(dense: Measurement) -> str:
    if dense.exposed_ratio is None:
        return "its wait for the network is not known"
    return f"{percent(dense.exposed_ratio)} of a step waits for the network"


def _at(cf: float) -> str:
    return "dense" if cf == 1.0 else f"at {name(cf)}"


def _holding(cf: float) -> str:
    return "Staying dense" if cf == 1.0 else f"Holding {name(cf)}"
