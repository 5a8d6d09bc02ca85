"""What a job believes of its plans: ``learn`` takes in a window, ``believe`` says what follows, with its error.

    step = own + coding + exposed
    exposed = max(0, waiting + size · seconds per byte)     (``gravac.policies.windows.exposed_seconds``)

``own`` is the step without coding and without the wait for the network. ``waiting`` is the wait that no plan avoids,
such as for slower ranks; below 0 it is what hides behind backward. Two plans of different size determine both terms.
From one plan the seconds per byte are those of the network as measured at the start, unless that plan contradicts them.

η of a plan is the mean of what simulations and what this job's steps showed. Simulations count as much as
``TABLE_STEPS`` steps. Arithmetic is + - * / and square roots only, so that a replay decides the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gravac.policies import trials
from gravac.policies.auto.settings import NOISE, Beliefs, Coding, Seen
from gravac.policies.auto.table import PlanFacts, PlanTable
from gravac.policies.base import DENSE, Plan
from gravac.policies.windows import exposed_seconds, levels_under, measure
from gravac.protocol import Decision, LevelSums, Phase, WindowReport
from gravac.signals import efficiency
from gravac.signals.efficiency import LOWEST, ROUNDING, TABLE_STEPS, Efficiency, Shown

SETTLED: dict[Phase, int] = {"warmup": 1, "explore": 2, "hold": 3}
"""Settled steps that a window must have to count. [steps; chosen]"""
IN_A_ROW = 2
"""Windows in a row that it takes to act: one bad window changes nothing. [windows; chosen]"""
LEAST_MOVE, NOISES_TO_MOVE = 0.08, 5.0
"""A step time that is off by more than 8 % and five times the noise has moved. [share, times; chosen]"""
TWICE = 2.0
"""A wait for the network that is this many times what was expected, or as little, contradicts that, if by more than
the noise of a step. [times; chosen]"""
NEWEST = 0.2
"""Weight of a window of the held plan in its times, and in the noise of the gradient. [share; chosen]"""
RISEN = 1.1
"""Energy that has risen by so much counts as another. Gradients that have come from a loss that jumped: a few large
steps in different directions outweigh all others there, and look like noise. Where a tenth of the elements have, under
the same plan, gradients compress better now, so what a plan lost before says nothing any more (under SGD).
[times; chosen]"""
TRIAL_PROGRESS = 5
"""Steps next to a dense reference that a trial needs to show what a plan loses. [steps; chosen]"""
MOST_STEPS = 200.0
"""The newest steps that an efficiency is measured by. [steps; chosen]"""
STEPS_ERROR = 0.25
"""Error of an efficiency by one step; it falls with the root of their number. [share; chosen]"""
UNMEASURED = 0.75
"""Share of the bound by which a plan that is tried may be expected to lose more, for kinds of optimizer whose backlog
says nothing: there, a trial next to a dense reference shows whether this model bears the plan. [share; chosen]"""
HALVES, MOST_DOUBLINGS = 4, 4
"""Windows after which what a plan showed counts as half as many steps in its error, while another one is in force;
twice as many with each failure, up to 16 times as many. [windows, doublings; chosen]"""
UNTRIED_ERROR = 0.5
"""Relative error of what no step has shown: the network as measured at the start, and a coding time. [share; chosen]"""
LEAST_APART = 1.4
"""Ratio of link bytes from which two plans determine the line. [times; chosen]"""
MAY_HIDE = 0.5
"""Share of a step's own work behind which an exchange may hide. [share; chosen]"""
FAR = 10.0
"""More than this many times the bytes that were ever sent in a step on this network, a prediction is no knowledge.
[times; chosen]"""
_TENTH = 20  # place of CF 10 in a gain curve
_MOST_SECONDS, _MOST_ENERGY = 1e9, 1e300  # that a record can hold


class Times(NamedTuple):
    """Seconds of a step, and those of them in which it waits for the network."""

    step: float
    exposed: float


NO_TIMES = Times(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a window taught.

    Attributes:
        beliefs: Beliefs after it.
        plan: Plan in force during the window.
        settled: Whether enough steps settled to measure its times.
        ended: Seconds of the step that ended its trial; None: it was not ended.
        was: Times before, where they are off now; None: they are not.
        now: Times of the window.
        moved: Whether they were off often enough to count, so that other plans' times are stale.
        noise_follows: Whether the next windows will show the noise of the gradient.
    """

    beliefs: Beliefs
    plan: Plan
    settled: bool
    ended: float | None
    was: Times | None
    now: Times
    moved: bool
    noise_follows: bool


@dataclass(frozen=True, slots=True)
class Belief:
    """One plan, as believed after a window.

    Attributes:
        facts: Facts of the plan.
        plan: Name of the plan in decisions.
        seconds: Time of a step: measured, or else predicted.
        error: Relative error of that time, without what is common to all predictions: a step's own work.
        sent_error: What of it comes from the network's speed.
        least: The least that is credible; of measured plans ``seconds``.
        worst: The most that is credible; likewise.
        fresh: Whether the seconds were measured on today's network.
        measured: Whether a step of it was ever measured.
        efficiency: η; None: unknown.
        efficiency_error: What the efficiency may be off by.
        steps: Steps of this job that show it; 0: expected alone.
        keeps: Whether the plan may be held.
        doubtful: Whether it may not, but its trial may show that it may.
        resting: Whether it is not tried now.
    """

    facts: PlanFacts
    plan: Plan
    seconds: float
    error: float
    sent_error: float
    least: float
    worst: float
    fresh: bool
    measured: Seen | None
    efficiency: float | None
    efficiency_error: float
    steps: float
    keeps: bool
    doubtful: bool
    resting: bool

    @property
    def score(self) -> float:
        """Useful throughput: η / seconds of a step, as all steps have the same number of samples."""
        return (self.efficiency or 0.0) / self.seconds


def learn(
    table: PlanTable, beliefs: Beliefs, report: WindowReport, decision: Decision, held: float
) -> Lesson:
    """Take in a window.

    Args:
        table: The job's plan table.
        beliefs: Beliefs before it.
        report: The window; it has steps under ``decision``.
        decision: Decision in force during it.
        held: Seconds of a step of the plan held before a trial; 0: not measured.
    """
    plan = Plan(decision.codec, decision.cf_candidate) if decision.cf_candidate > 1.0 else DENSE
    found = measure(report, decision, SETTLED.get(decision.phase, 1)).get(plan.cf)
    level = next((each for each in levels_under(report, decision) if each.cf == plan.cf), None)
    steps = report.last_step - report.first_step + 1
    change: dict[str, Any] = {"elapsed": min(1e12, beliefs.elapsed + report.seconds)}
    if decision.phase == "explore" and held > 0.0:
        change["spent"] = min(1e12, beliefs.spent + trials.cost(report.seconds, steps, held))
    if table.telling and level is not None and level.sums.steps:
        change |= _noise(beliefs, level)
    beliefs = beliefs.model_copy(update=change)
    share = tenth_of(report) if table.telling else None
    if share is not None:
        beliefs = _woken(beliefs, plan, share)
    now = NO_TIMES
    if found is not None:
        now = Times(found.step_seconds, min(found.exposed_seconds or 0.0, found.step_seconds))
    ended = report.trial_seconds if decision.phase == "explore" else None
    if ended is not None:
        found, now = None, Times(ended, max(0.0, ended - _own_of(beliefs)))
    was, moved = None, False
    if found is not None and decision.phase == "hold" and beliefs.reference is not None:
        was, beliefs = _compared(table, beliefs, plan, now, measured_wait=found.exposed_seconds is not None)
        moved = was is not None and beliefs.off >= IN_A_ROW
        if moved and was is not None:
            network = abs(now.exposed - was.exposed) > beliefs.noise * was.step
            beliefs = _moved(table, beliefs, plan, network, faster=now.step < was.step)
    if (found is not None or ended is not None) and (was is None or moved):
        smooth = decision.phase == "hold" and was is None and beliefs.reference is not None
        beliefs = _timed(table, beliefs, plan, now, report.window, NEWEST if smooth else 1.0)
        if decision.phase == "hold" and (moved or beliefs.reference is None):
            beliefs = beliefs.model_copy(update={"reference": now.step, "reference_exposed": now.exposed})
    if level is not None and plan != DENSE:
        beliefs = _kept(table, beliefs, plan, level, report, decision.phase)
    followed = any(each.sums.progress_steps > 0 for each in report.levels)
    return Lesson(
        beliefs=beliefs,
        plan=plan,
        settled=found is not None,
        ended=ended,
        was=was,
        now=now,
        moved=moved,
        noise_follows=table.telling and beliefs.confirmed is None and followed,
    )


def nothing(beliefs: Beliefs, plan: Plan = DENSE) -> Lesson:
    """Return the lesson of a window that has no step under the decision in force."""
    return Lesson(beliefs, plan, False, None, None, NO_TIMES, False, False)


def _woken(beliefs: Beliefs, plan: Plan, share: float) -> Beliefs:
    """Return the beliefs without what plans lost, where gradients compress better than when the last one was left.

    Args:
        beliefs: Before the window.
        plan: Plan in force. A curve shows gradient and residual, so only those of one plan compare.
        share: Share of the energy in the largest tenth of the elements.
    """
    row = row_of(beliefs, plan)
    if row.tenth is not None and share <= RISEN * row.tenth:
        return beliefs
    seen = beliefs.seen
    if row.tenth is not None:
        forgotten = {"efficiency": None, "steps": 0.0, "barred": 0}
        seen = tuple(each.model_copy(update=forgotten) if each.failures else each for each in seen)
    beliefs = beliefs.model_copy(update={"seen": seen})
    return _with(beliefs, row_of(beliefs, plan).model_copy(update={"tenth": share}))


def tenth_of(report: WindowReport) -> float | None:
    """Return the share of energy in the largest tenth of the elements; None without a curve."""
    gain = None if report.curve is None else report.curve.gains[_TENTH]
    return None if gain is None else min(1.0, gain)


def _own_of(beliefs: Beliefs) -> float:
    """Return about what a step takes without waiting, by the newest measurement."""
    row = max((row for row in beliefs.seen if row.fresh), key=lambda row: row.window, default=None)
    return 0.0 if row is None else row.step_seconds - row.exposed_seconds


def _noise(beliefs: Beliefs, level: LevelSums) -> dict[str, Any]:
    """Return how much of the mean gradient is not noise, under SGD, where expected losses depend on it.

    A window whose gradients rose may show less noise than was known, but not more. What is known first is of all
    steps so far, also of those too few to show it alone: one window may be far from those after it.
    """
    sums, before, last = level.sums, beliefs.confirmed, beliefs.gradient
    energy = sums.gradient_sq / sums.steps
    risen = last is not None and energy > RISEN * last
    change: dict[str, Any] = {"gradient": energy}
    if before is None and not risen:
        whole = min(_MOST_ENERGY, beliefs.raw_mean_sq + sums.raw_mean_sq)
        product = min(whole, max(-whole, beliefs.raw_dot_next + sums.raw_dot_next))
        change |= {"raw_mean_sq": whole, "raw_dot_next": product}
        sums = sums.model_copy(update={"raw_mean_sq": whole, "raw_dot_next": product})
    found = efficiency.confirmed_by(sums)
    if found is not None and not (risen and (before is None or found < before)):
        change["confirmed"] = found if before is None else before + NEWEST * (found - before)
    return change


def _compared(
    table: PlanTable, beliefs: Beliefs, plan: Plan, now: Times, *, measured_wait: bool
) -> tuple[Times | None, Beliefs]:
    """Compare a held plan's times with the usual ones. Returns those if the window is off them, else None."""
    assert beliefs.reference is not None
    was = Times(beliefs.reference, beliefs.reference_exposed)
    off = abs(now.step - was.step)
    allowed = max(LEAST_MOVE, NOISES_TO_MOVE * beliefs.noise) * was.step
    slower = now.step > was.step
    away = off > allowed
    if not away and measured_wait:
        # A plan that sends a hundredth waits for some ms, and as much is noise of a step.
        waits = abs(now.exposed - was.exposed)
        doubled = max(now.exposed, was.exposed) >= TWICE * min(now.exposed, was.exposed)
        away = doubled and waits > beliefs.noise * was.step and waits * table.by_plan[plan].lighter > allowed
        slower = now.exposed > was.exposed
    if away:  # noise goes both ways
        count = beliefs.off + 1 if beliefs.slower == slower else 1
        return was, beliefs.model_copy(update={"off": count, "slower": slower})
    deviation = 1.25 * off / max(1e-9, was.step)  # of a mean distance
    noise = beliefs.noise + NEWEST / 2 * (deviation - beliefs.noise)
    exposed = was.exposed + (NEWEST * (now.exposed - was.exposed) if measured_wait else 0.0)
    change = {
        "off": 0,
        "noise": min(1.0, max(0.0, noise)),
        "reference": was.step + NEWEST * (now.step - was.step),
        "reference_exposed": max(0.0, exposed),
    }
    return None, beliefs.model_copy(update=change)


def _moved(table: PlanTable, beliefs: Beliefs, plan: Plan, network: bool, *, faster: bool) -> Beliefs:
    """Return the beliefs after times have moved: those of other plans are of before. ``network``: its wait moved, too.

    Where a step moved and its wait did not, computing did. That says nothing of the network, but where steps became
    faster, its part in them may have, too.
    """
    seen = tuple(row.model_copy(update={"fresh": False, "until": 0}) for row in beliefs.seen)
    change: dict[str, Any] = {"seen": seen, "off": 0, "noise": max(beliefs.noise, NOISE)}
    if network or faster:
        change["line_error"] = 1.0
    if network:
        change["largest"] = table.by_plan[plan].link_bytes
    return beliefs.model_copy(update=change)


def _timed(table: PlanTable, beliefs: Beliefs, plan: Plan, now: Times, window: int, weight: float) -> Beliefs:
    """Record the times of a plan. ``weight``: that of the window next to earlier ones."""
    facts, before = table.by_plan[plan], row_of(beliefs, plan)
    step, exposed = now
    if weight < 1.0 and before.fresh:
        step = before.step_seconds + weight * (step - before.step_seconds)
        exposed = min(step, before.exposed_seconds + weight * (exposed - before.exposed_seconds))
    change = {"step_seconds": step, "exposed_seconds": exposed, "window": window, "fresh": True}
    row = before.model_copy(update=change)
    beliefs = _with(beliefs, row, largest=max(beliefs.largest, facts.link_bytes))
    dense = row_of(beliefs, DENSE)
    if dense.fresh and facts.coding > 0.0:  # own work is known
        own = max(0.0, dense.step_seconds - dense.exposed_seconds)
        took = step - exposed - own
        if abs(took - _coding(beliefs, facts)[0]) > beliefs.noise * own:
            kept = tuple(each for each in beliefs.codings if each.family != facts.family)
            ratio = Coding(family=facts.family, ratio=min(100.0, max(0.0, took / facts.coding)))
            beliefs = beliefs.model_copy(update={"codings": (*kept, ratio)})
    line = _line(table, beliefs, row)
    if line.determined:
        known = {"waiting": line.waiting, "per_byte": line.per_byte, "line_error": line.error}
        beliefs = beliefs.model_copy(update=known)
    return beliefs


def _kept(
    table: PlanTable, beliefs: Beliefs, plan: Plan, level: LevelSums, report: WindowReport, phase: Phase
) -> Beliefs:
    """Record what a window shows of the efficiency of the plan in force."""
    facts, row = table.by_plan[plan], row_of(beliefs, plan)
    expected = facts.expected(beliefs.confirmed, report.first_step)
    late = facts.late
    found = efficiency.shown(level.sums, table.kind, expected, beliefs.confirmed, late=late)
    if phase != "hold" and not table.telling and not late and expected is not None:
        found = _tried(table, level, expected)
    if found is None or found.steps <= 0:
        return beliefs
    if table.telling and facts.random and expected is not None and found.likely >= expected.likely:
        return beliefs  # the backlog shows what comes late, not what was rounded at random
    likely = found.likely
    if expected is not None and facts.kept is not None and facts.kept.unseen:
        likely = min(likely, expected.likely)
    before = 0.0 if row.efficiency is None else min(row.steps, MOST_STEPS)
    steps = before + found.steps
    mean = likely if row.efficiency is None else (before * row.efficiency + found.steps * likely) / steps
    shown = {
        "efficiency": min(1.0, max(LOWEST, mean)),
        "steps": min(MOST_STEPS, steps),
        "shown": report.window,
        "confirmed": beliefs.confirmed,
    }
    return _with(beliefs, row.model_copy(update=shown))


def _tried(table: PlanTable, level: LevelSums, expected: Efficiency) -> Shown | None:
    """Return η of a plan by a trial next to a dense reference, under optimizers whose backlog shows little.

    Its residual has only begun to grow, so only the progress ratio counts.
    """
    sums = level.sums
    if sums.progress_steps < TRIAL_PROGRESS or not sums.reference_sq > 0.0:
        return efficiency.shown(sums, table.kind, expected, None, late=False)
    likely = efficiency.of_progress(0.0, sums.moved_dot_reference / sums.reference_sq, 0.0, "adam")
    return Shown(min(expected.high, likely), sums.progress_steps)


def failed(beliefs: Beliefs, plan: Plan, window: int) -> Beliefs:
    """Note that a plan was left, or not held, because of its efficiency in a window."""
    seen = tuple(each.model_copy(update={"tenth": None}) for each in beliefs.seen)
    row = row_of(beliefs, plan)
    row = row.model_copy(update={"failures": row.failures + 1, "tenth": None})
    beliefs = beliefs.model_copy(update={"seen": seen})
    return _with(beliefs, row.model_copy(update={"barred": window + _halving(row)}))


def rested(beliefs: Beliefs, plan: Plan, until: int) -> Beliefs:
    """Note that a plan is not tried before a window."""
    return _with(beliefs, row_of(beliefs, plan).model_copy(update={"until": until}))


def row_of(beliefs: Beliefs, plan: Plan) -> Seen:
    """Return what was measured of a plan; nothing, if it never was."""
    return next((row for row in beliefs.seen if row.plan == plan), Seen(codec=plan.codec, cf=plan.cf))


def _with(beliefs: Beliefs, row: Seen, **change: Any) -> Beliefs:
    others = tuple(each for each in beliefs.seen if (each.codec, each.cf) != (row.codec, row.cf))
    return beliefs.model_copy(update={"seen": (*others, row), **change})


class _Line(NamedTuple):
    """Terms of the formula and their errors, that of ``per_byte`` relative. ``determined``: whether by two plans."""

    own: float
    own_error: float
    waiting: float
    per_byte: float
    error: float
    determined: bool


def _line(table: PlanTable, beliefs: Beliefs, newest: Seen) -> _Line:
    """Fit the terms to the fresh measurements of most and of least bytes; to ``newest`` where those are too close."""
    fresh = [row for row in beliefs.seen if row.fresh and row.plan in table.by_plan]
    base = next((row for row in fresh if row.cf == 1.0), newest)
    facts = table.by_plan[base.plan]
    coding, off = _coding(beliefs, facts)
    own = max(0.0, base.step_seconds - base.exposed_seconds - coding)
    sized = sorted((table.by_plan[row.plan].size, row.exposed_seconds) for row in fresh)
    (least, short), (most, long) = sized[0], sized[-1]
    noise, more = beliefs.noise * base.step_seconds, long - short
    known = beliefs.per_byte is not None or table.dense.exchange is not None
    if most > LEAST_APART * least and (more > noise or not known):  # else the difference may be noise
        slope = max(0.0, more) / (most - least)
        error = min(1.0, max(NOISE, noise / max(1e-12, more)))
        return _Line(own, off, short - slope * least, min(1e9, slope), error, True)
    return _Line(own, off, *_one_plan(table, beliefs, newest))


def _one_plan(table: PlanTable, beliefs: Beliefs, newest: Seen) -> tuple[float, float, float, bool]:
    """Fit the network's terms to one plan, next to what was known of it before."""
    facts, exposed = table.by_plan[newest.plan], newest.exposed_seconds
    size, dense, noise = facts.size, table.dense, beliefs.noise * newest.step_seconds
    per_byte, waiting, error = beliefs.per_byte, beliefs.waiting or 0.0, beliefs.line_error
    if per_byte is None and dense.exchange is not None:
        per_byte, waiting, error = dense.exchange / dense.size, 0.0, max(UNTRIED_ERROR, error)
    if per_byte is None:
        return (0.0, min(1e9, exposed / size), UNTRIED_ERROR, False)
    expected = exposed_seconds(per_byte * size, -waiting)
    if exposed > TWICE * expected + noise:  # what was known has no say any more
        slope = min(1e9, exposed / size)
        return (0.0, slope, min(1.0, max(error, 1.0 - per_byte / slope)), False)
    if beliefs.per_byte is None:
        return (exposed - per_byte * size, per_byte, error, False)
    if TWICE * exposed + noise < expected:  # the bytes take no longer than what shows and what hides
        hidden = min(0.0, waiting)
        return (hidden, min(per_byte, (exposed - hidden) / size), 1.0, False)
    return (min(waiting, exposed), per_byte, error, False)


def _coding(beliefs: Beliefs, facts: PlanFacts) -> tuple[float, float]:
    """Return the seconds to encode and decode under a plan, and their error."""
    if not beliefs.codings or facts.coding == 0.0:
        return facts.coding, UNTRIED_ERROR * facts.coding
    exact = next((each.ratio for each in beliefs.codings if each.family == facts.family), None)
    if exact is not None:
        return exact * facts.coding, beliefs.noise * exact * facts.coding
    likely = beliefs.codings[-1].ratio * facts.coding  # a machine is slow or fast for all of them
    return likely, UNTRIED_ERROR * likely


def believe(table: PlanTable, beliefs: Beliefs, plan: Plan, window: int, step: int) -> tuple[Belief, ...]:
    """Return what follows for each plan, in the table's order.

    A plan that was measured keeps the bound unless its η, with its error, is outside, it is barred, or neither what was
    expected nor what was measured is inside. One that was not measured does if its likely η does, reliably. The error
    of a plan that is not in force grows, the more slowly the more often it failed.

    Args:
        table: The job's plan table.
        beliefs: What was learned.
        plan: Plan in force.
        window: Newest one.
        step: Step of the training.
    """
    rows = {row.plan: row for row in beliefs.seen}
    rows = {known: row for known, row in rows.items() if known in table.by_plan}
    fresh = [row for row in rows.values() if row.fresh]
    newest = max(fresh, key=lambda row: row.window, default=None)
    line = None if newest is None else _line(table, beliefs, newest)
    shown: dict[tuple[str, float], list[Seen]] = {}
    for known, seen in rows.items():
        if seen.efficiency is not None:
            shown.setdefault((table.by_plan[known].values, known.cf), []).append(seen)
    kept: list[tuple[PlanFacts, float]] = []  # measured plans and their η
    found: dict[Plan, Belief] = {}
    for facts in table.weakest_first:
        row = rows.get(facts.plan)
        times = _seconds(table, beliefs, facts, line, row)
        resting = row is not None and row.until > window
        if facts is table.dense:
            found[DENSE] = Belief(facts, DENSE, *times, row, 1.0, 0.0, 0.0, True, False, resting)
            continue
        alike = shown.get((facts.values, facts.plan.cf), [])
        weaker = [value for each, value in kept if each.base == facts.base and each.plan.cf < facts.plan.cf]
        eta = _efficiency(table, beliefs, facts, alike, weaker, plan, window, step)
        if eta.steps:
            kept.append((facts, eta.likely or 0.0))
        found[facts.plan] = Belief(facts, facts.plan, *times, row, *eta, resting)
    return tuple(found[facts.plan] for facts in table.rows)


class _Eta(NamedTuple):
    """The middle figures of a ``Belief``."""

    likely: float | None
    error: float
    steps: float
    keeps: bool
    doubtful: bool


def _efficiency(
    table: PlanTable,
    beliefs: Beliefs,
    facts: PlanFacts,
    alike: Sequence[Seen],
    weaker: Sequence[float],
    plan: Plan,
    window: int,
    step: int,
) -> _Eta:
    """Return what is believed of the efficiency of a plan.

    Args:
        table: The job's plan table.
        beliefs: What was learned.
        facts: Facts of the plan.
        alike: What was measured of it, and of plans that send the same values.
        weaker: η of measured weaker plans of the same codec.
        plan: Plan in force.
        window: Newest one.
        step: Step of the training.
    """
    expected = facts.expected(beliefs.confirmed, step)
    prior = 1.0 - table.accepted if expected is None else expected.likely
    prior = min([prior, *weaker])
    least = 1.0 - table.accepted - ROUNDING
    evidence, steps, now = _evidence(facts, beliefs, alike, plan, window)
    if evidence is not None and now >= 1.0:
        failing = any(window < row.barred and row.plan != plan for row in alike)
        likely = (TABLE_STEPS * prior + steps * evidence) / (TABLE_STEPS + steps)
        off = STEPS_ERROR / math.sqrt(TABLE_STEPS + now)
        keeps = not failing and likely + off >= least and (prior >= least or evidence >= least)
        return _Eta(likely, off, steps, keeps, False)
    if expected is None and not table.limited:
        return _Eta(None, 0.0, 0.0, False, False)
    reliable = table.limited or expected is None or expected.reliable
    keeps = prior >= least and reliable
    doubtful = False
    if not keeps and evidence is None and expected is not None and (not weaker or min(weaker) >= least):
        doubtful = _doubtful(table, beliefs, facts, expected, reliable)
    wide = 0.0 if expected is None else (expected.high - expected.low) / 2
    return _Eta(prior, wide, 0.0, keeps, doubtful)


def _evidence(
    facts: PlanFacts, beliefs: Beliefs, alike: Sequence[Seen], plan: Plan, window: int
) -> tuple[float | None, float, float]:
    """Return η of a plan as this job's steps showed it, by how many, and by how many its error counts now."""
    best, shown, most = None, 0.0, 0.0
    for row in alike:
        steps = row.steps if row.plan == plan else row.steps / (1.0 + (window - row.shown) / _halving(row))
        if row.efficiency is None or steps <= most:
            continue
        best, shown, most = row.efficiency, row.steps, steps
        if row.confirmed is not None and facts.kept is not None:  # a noisier gradient loses less by delays
            times = facts.kept.noise_times
            now = efficiency.times_by_noise(times, beliefs.confirmed)
            best = max(LOWEST, 1.0 - (1.0 - best) * now / efficiency.times_by_noise(times, row.confirmed))
    return best, shown, most


def _halving(row: Seen) -> int:
    """Return the windows after which what a plan showed counts half."""
    return HALVES << min(row.failures, MOST_DOUBLINGS)


def _doubtful(
    table: PlanTable,
    beliefs: Beliefs,
    facts: PlanFacts,
    expected: Efficiency,
    reliable: bool,
) -> bool:
    """Return whether a plan that is not expected to keep the bound may be tried, as a trial may show that it does."""
    if facts.late:
        return False
    if table.telling:
        return expected.high >= 1.0 - table.accepted - ROUNDING
    within = 1.0 - expected.likely <= (1.0 + UNMEASURED) * table.accepted + ROUNDING
    return reliable and within and not any(row.failures for row in beliefs.seen)


def _seconds(
    table: PlanTable, beliefs: Beliefs, facts: PlanFacts, line: _Line | None, row: Seen | None
) -> tuple[float, float, float, float, float, bool]:
    """Return the first figures of a ``Belief``: seconds, errors, least, worst, and whether they were measured."""
    if row is not None and row.fresh:
        seconds = max(1e-9, row.step_seconds)
        return seconds, beliefs.noise * seconds, 0.0, seconds, seconds, True
    if line is None:
        return 1.0, 1.0, 0.0, 1.0, 1.0, False
    coding, coding_error = _coding(beliefs, facts)
    sent = line.per_byte * facts.size
    exposed = exposed_seconds(sent, -line.waiting)
    sent_error = line.error * sent
    seconds = max(1e-9, line.own + coding + exposed)
    error = math.sqrt(coding_error * coding_error + sent_error * sent_error)
    off = math.sqrt(error * error + line.own_error * line.own_error)
    worst, least = seconds + error, max(1e-9, seconds - off)
    if line.waiting < 0.0 or not line.determined:  # some of the exchange may hide behind backward
        least = max(1e-9, min(least, line.own + coding + exposed - MAY_HIDE * line.own))
    if facts.exchange is not None and not line.determined:
        worst = max(worst, line.own + coding + facts.exchange)
    if beliefs.largest > 0.0 and facts.link_bytes > FAR * beliefs.largest:
        worst = line.own + coding + (worst - line.own - coding) * facts.link_bytes / (FAR * beliefs.largest)
    return seconds, error, sent_error, least, worst, False
