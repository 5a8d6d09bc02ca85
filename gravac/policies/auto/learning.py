"""What one window of the auto policy teaches: step times, coding times, efficiency, and which plans rest."""

from dataclasses import dataclass, field
from typing import Any

from gravac.policies.auto import timemodel
from gravac.policies.auto.outlook import Outlook, accepted_loss, outlook
from gravac.policies.auto.settings import AutoSettings, AutoState, Coding, Rest, Seen
from gravac.policies.auto.space import Space
from gravac.policies.auto.timemodel import PlanTimeModel
from gravac.policies.base import DENSE, Plan
from gravac.policies.windows import Measurement, levels_under, measure
from gravac.protocol import GainSums, Phase, WindowReport
from gravac.signals import efficiency
from gravac.signals.risk import SLACK

SETTLED: dict[Phase, int] = {"warmup": 1, "explore": 2, "hold": 3}
"""Settled steps that a window must have to count. [steps; chosen]"""
TO_WIN, NOISES_TO_WIN = 0.02, 2.0
"""Another plan must promise more than 2 % and twice the noise. [share, times; chosen]"""
SAYS_NOTHING = 0.01
"""Plans that lose less, as expected and as measured, say nothing of what others lose, where more is known.
[share; chosen]"""
NEW_NOISE = 0.3
"""Weight of a window in the noise of the gradient, which one window shows roughly. [share; chosen]"""
RISEN_GRADIENT = 1.1
"""Gradients with this many times the energy of the window before come from a loss that jumped. A few large steps in
different directions outweigh all others there, and look like noise. [times; chosen]"""
TRIAL_PROGRESS = 5
"""Steps next to a dense reference that a trial needs to show what a plan loses. [steps; chosen]"""
TRIAL_NOISE = 0.03
"""By how much a trial may be below the range of the simulations without contradicting it. [share; chosen]"""
REST_WINDOWS, MOST_REST_WINDOWS = 2, 64
"""First and longest rest of a plan that lost too much efficiency. [windows; chosen]"""
RISE = 1.2
"""The gradient compresses better once a tenth of its elements holds this many times as much energy. [times; chosen]"""
_TENTH = 20  # place of CF 10 in a gain curve
_LIMIT, _MOST_ENERGY = 1e9, 1e300  # seconds and energy that a state can hold


@dataclass(slots=True)
class Learning:
    """One window, and the state as it becomes. ``plan``: in force. ``measured``: its times; None: too few steps."""

    settings: AutoSettings
    space: Space
    state: AutoState
    report: WindowReport
    plan: Plan = field(init=False)
    measured: Measurement | None = field(init=False)

    def __post_init__(self) -> None:
        previous = self.state.decision
        self.plan = Plan(previous.codec, previous.cf_candidate) if previous.cf_candidate > 1.0 else DENSE
        least = SETTLED.get(previous.phase, 1)
        self.measured = measure(self.report, previous, least).get(self.plan.cf)

    @property
    def margin(self) -> float:
        """What another plan must promise more, relative."""
        return max(TO_WIN, NOISES_TO_WIN * self.state.noise)

    @property
    def curve_share(self) -> float | None:
        """Share of energy in the largest tenth of the elements; None without a curve."""
        gain = None if self.report.curve is None else self.report.curve.gains[_TENTH]
        return None if gain is None else min(1.0, gain)

    def follow_network(self, found: Measurement) -> None:
        """Carry the line of the time model over to the network as it is now."""
        before = self.row(self.plan)
        if before is None or not before.fresh:
            return
        model = self.model(before)
        waiting, per_byte, exposed = model.waiting, model.per_byte, found.exposed_seconds or 0.0
        if timemodel.hides(waiting, exposed) and self.state.reference_exposed > 0.0:
            per_byte *= exposed / self.state.reference_exposed
        self.change(waiting=min(_LIMIT, max(-_LIMIT, waiting)), per_byte=min(_LIMIT, per_byte))

    def note(self, found: Measurement, weight: float = 1.0) -> Seen:
        """Record a measurement of the plan in force, and what it says of coding and of the efficiency of all plans."""
        exposed = 0.0 if found.exposed_seconds is None else min(found.exposed_seconds, found.step_seconds)
        seconds, before = found.step_seconds, self.row(self.plan)
        if weight < 1.0 and before is not None and before.fresh:
            seconds = before.step_seconds + weight * (seconds - before.step_seconds)
            exposed = min(seconds, before.exposed_seconds + weight * (exposed - before.exposed_seconds))
        self._note_noise()
        row = Seen(
            codec=self.plan.codec,
            cf=self.plan.cf,
            step_seconds=seconds,
            exposed_seconds=exposed,
            efficiency=self._efficiency(before, weight),
            window=self.report.window,
            fresh=True,
        )
        kept = tuple(
            each for each in self.state.seen if each.plan != self.plan and each.plan in self.space.costs
        )
        self.change(seen=(*kept, row), waited=0)
        self._note_coding(row)
        model = self.model(row)
        if model.determined:
            self.change(waiting=min(_LIMIT, max(-_LIMIT, model.waiting)), per_byte=model.per_byte)
        return row

    def _note_noise(self) -> None:
        """Record how much of the mean gradient is not noise, under SGD, where expected losses depend on it.

        A window whose gradients rose may show less noise than was known, but not more. What is known first is of all
        steps so far, also of those too few to show it alone: one window may be far from those after it.
        """
        if self.space.kind not in efficiency.TELLING:
            return
        for level in levels_under(self.report, self.state.decision):
            if level.cf != self.plan.cf or not level.sums.steps:
                continue
            energy, last = level.sums.gradient_sq / level.sums.steps, self.state.gradient
            risen = last is not None and energy > RISEN_GRADIENT * last
            self.change(gradient=energy)
            sums, before = level.sums, self.state.confirmed
            if before is None and not risen:
                whole = min(_MOST_ENERGY, self.state.raw_mean_sq + sums.raw_mean_sq)
                product = min(whole, max(-whole, self.state.raw_dot_next + sums.raw_dot_next))
                self.change(raw_mean_sq=whole, raw_dot_next=product)
                sums = sums.model_copy(update={"raw_mean_sq": whole, "raw_dot_next": product})
            found = efficiency.confirmed_by(sums)
            if found is None or (risen and (before is None or found < before)):
                continue
            self.change(confirmed=found if before is None else before + NEW_NOISE * (found - before))

    def _efficiency(self, before: Seen | None, weight: float) -> float | None:
        """Return the plan's η by this window. In hold it also corrects what is expected of the other plans."""
        if self.plan == DENSE:
            return 1.0
        codec = self.space.codec(self.plan)
        level = next(
            (each for each in levels_under(self.report, self.state.decision) if each.cf == self.plan.cf), None
        )
        kind, confirmed = self.space.kind, self.state.confirmed
        shown = (
            None
            if level is None
            else efficiency.measured(level.sums, codec, self.plan.cf, kind, confirmed, self.space.ranks)
        )
        table = self.space.expected(self.plan, confirmed)
        known = None if before is None else before.efficiency
        if shown is None or level is None:
            return known
        likely, holding = shown.likely, self.state.decision.phase == "hold"
        if table is not None and efficiency.errs_more(
            codec, self.space.ranks, kind
        ):  # which windows do not show
            likely = min(likely, table.likely)
        if table is not None and kind not in efficiency.TELLING:
            if not holding and efficiency.counts_late(codec, kind):
                return table.likely  # of late gradients a trial shows nothing
            if not holding:
                return self._tried(level.sums, min(likely, table.likely), table)
            if level.sums.progress_steps < efficiency.LEAST_STEPS and likely >= table.likely:
                return known
        if not holding:  # the residual has only begun to grow
            return likely
        by_table = kind in efficiency.TELLING and confirmed is None  # nothing better is known of other plans
        if (
            table is not None
            and table.likely < 1.0
            and (by_table or 1.0 - min(likely, table.likely) >= SAYS_NOTHING)
        ):
            ratio = min(4.0, max(0.25, (1.0 - likely) / (1.0 - table.likely)))
            self.change(severity=self.state.severity + 0.5 * (ratio - self.state.severity))
        if weight < 1.0 and known is not None:
            likely = known + 0.5 * (likely - known)
        return likely

    def _tried(self, sums: GainSums, otherwise: float, table: efficiency.Efficiency) -> float:
        """Return η of a plan by a trial next to a dense reference, where it may be a little below the bound.

        Holding the plan shows more: its residual has only begun to grow, so only the progress ratio counts. A few steps
        that are a little below the range of the simulations, as in a young training, do not contradict it.

        Args:
            sums: Of the trial.
            otherwise: Returned where the trial had no dense reference.
            table: As simulated.
        """
        if sums.progress_steps < TRIAL_PROGRESS or not sums.reference_sq > 0.0:
            return otherwise
        progress, accepted = sums.moved_dot_reference / sums.reference_sq, self.accepted
        counts = efficiency.table_of(self.space.codec(self.plan), self.space.kind)
        found = efficiency.of_progress(0.0, progress, 0.0, counts)
        if table.low - TRIAL_NOISE <= found < table.low:
            found = table.low
        found = min(table.high, found)
        return found if found < 1.0 - (1.0 + SLACK) * accepted else max(found, 1.0 - accepted)

    @property
    def accepted(self) -> float:
        """The largest loss of efficiency of a plan that may be held."""
        return accepted_loss(self.settings.bound, self.space)

    @property
    def noise_follows(self) -> bool:
        """Whether the next windows will show the noise of the gradient, so that doubtful plans can wait for it."""
        return (
            self.space.kind in efficiency.TELLING
            and self.state.confirmed is None
            and any(level.sums.progress_steps > 0 for level in self.report.levels)
        )

    def _note_coding(self, row: Seen) -> None:
        """Correct the coding time of the plan's codec, once own work is known from dense steps."""
        dense, prior = self.row(DENSE), timemodel.prior_coding(self.space, row.plan)
        if dense is None or not dense.fresh or prior <= 0.0:
            return
        own = max(0.0, dense.step_seconds - dense.exposed_seconds)
        took = row.step_seconds - row.exposed_seconds - own
        if abs(took - timemodel.coding(self.space, self.state.codings, row.plan)) <= self.state.noise * own:
            return
        name = timemodel.family(self.space.codec(row.plan))
        kept = tuple(coding for coding in self.state.codings if coding.family != name)
        ratio = min(100.0, max(0.0, took / prior))
        self.change(codings=(*kept, Coding(family=name, ratio=ratio)))

    def rest(self, plan: Plan) -> None:
        """Do not try a plan again for a while, twice as long as the last time, nor others that send the same values."""
        before = next((each.windows for each in self.state.resting if each.plan == plan), None)
        windows = REST_WINDOWS if before is None else min(MOST_REST_WINDOWS, 2 * before)
        values = self.space.values
        alike = [each for each in self.space.plans if values(each) == values(plan)]
        rests = (
            Rest(
                codec=each.codec,
                cf=each.cf,
                until=self.report.window + windows,
                windows=windows,
                gain=self.curve_share,
            )
            for each in alike
        )
        self.change(resting=(*(each for each in self.state.resting if each.plan not in alike), *rests))

    def wake(self) -> None:
        """End rests that are over, or whose reason is: plans are again expected to lose what simulations say.

        They are not held for that: as if they had not been measured, a trial comes first.
        """
        window, share = self.report.window, self.curve_share
        risen = {
            each.plan
            for each in self.state.resting
            if share is not None and each.gain is not None and share > RISE * each.gain
        }
        over = {each.plan for each in self.state.resting if 0 < each.until <= window} | risen
        if not over:
            return
        resting = tuple(
            each.model_copy(update={"until": 0}) if each.plan in over else each
            for each in self.state.resting
            if each.plan not in risen
        )
        seen = tuple(
            each.model_copy(update={"efficiency": None, "fresh": False}) if each.plan in over else each
            for each in self.state.seen
        )
        self.change(resting=resting, seen=seen, severity=min(1.0, self.state.severity))

    def row(self, plan: Plan) -> Seen | None:
        """Return a plan as last measured; None: never."""
        return next((each for each in self.state.seen if each.plan == plan), None)

    def model(self, row: Seen | None) -> PlanTimeModel:
        """Return the time model by all fresh measurements. ``row`` as in ``view``."""
        state = self.state
        fresh = [each for each in state.seen if each.fresh and each.plan in self.space.costs]
        newest = row or (max(fresh, key=lambda each: each.window) if fresh else None)
        if newest is None:
            return PlanTimeModel(self.space, state.codings, 1.0, 0.0, 0.0, determined=False)
        return timemodel.fit(self.space, fresh, state.codings, newest, state.waiting, state.per_byte)

    def view(self, row: Seen | None) -> Outlook:
        """Return what each plan promises. ``row``: the measurement that counts most; None: the newest."""
        return outlook(self.space, self.settings.bound, self.model(row), self.state, self.report.window)

    def change(self, **changes: Any) -> None:
        """Change fields of the state."""
        self.state = self.state.model_copy(update=changes)
