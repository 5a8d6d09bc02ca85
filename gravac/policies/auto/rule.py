"""The rule of the auto policy: what one window means, and the decision that follows."""

from dataclasses import dataclass

from gravac.policies.auto import timemodel
from gravac.policies.auto.learning import Learning
from gravac.policies.auto.outlook import Outlook
from gravac.policies.auto.settings import NOISE, AutoState, Seen
from gravac.policies.base import DENSE, Plan, Verdict
from gravac.policies.windows import Measurement, gain_of, levels_under, next_decision, unusable
from gravac.protocol import KnownRule, Phase
from gravac.signals import efficiency
from gravac.signals.risk import SLACK
from gravac.wording import format_number, format_percent
from gravac.wording import format_seconds as _seconds

START_STEPS, MORE_STEPS = 1, 2
"""Steps of the first dense window, which suffices where the network was measured, and of those after it. With the
agents' default the fourth step is the first settled one, and about three follow until a decision is in force.
[steps; chosen]"""
TRIAL_STEPS = 10
"""Steps of a window that tries a plan. [steps; chosen]"""
PATIENCE = 6
"""Windows without enough settled steps after which a start takes windows of normal length, and a trial is given up.
[windows; chosen]"""
MOST_TRIALS = 3
"""Plans tried in one search; more while none that was measured keeps the bound. [plans; chosen]"""
HIDDEN = 0.10
"""A plan is also tried if it would win by this much should all of its exchange be hidden. [share; chosen]"""
DOUBT = 1.5
"""Dense steps that were never measured are tried at the end of a search, unless they are predicted to take this many
times as long as those of the plan to hold; after steps became faster twice as many. [times; chosen]"""
LEAST_MOVE, NOISES_TO_MOVE = 0.08, 5.0
"""A step time that is off by more than 8 % and five times the noise has moved. [share, times; chosen]"""
TWICE = 2.0
"""A wait for the network that is this many times what it was, or as little, has moved, if by more than the noise of a
step. [times; chosen]"""
FIRST_LOOK, LOOK_COST, LOOK_DOUBLINGS = 50, 0.01, 4
"""Windows in hold before dense is measured again, at least; the share of time that this may cost at first; and how
often the interval doubles. [windows, share, times; chosen]"""
IN_A_ROW = 2
"""Windows in a row that it takes to act: one bad window changes nothing. [windows; chosen]"""


@dataclass(slots=True)
class AutoEvaluation(Learning):
    """One window as the rule sees it. ``decide`` answers it."""

    @property
    def samples(self) -> float:
        """Samples of one step of all ranks; 1 where they cannot be counted."""
        steps = self.report.last_step - self.report.first_step + 1
        return (self.report.samples or steps) / steps if steps > 0 else 1.0

    def decide(self) -> Verdict:
        """Decide after the window."""
        if not levels_under(self.report, self.state.decision):
            decision = unusable(self.state.decision, self.report)
            return Verdict(decision, self.state.model_copy(update={"decision": decision}))
        if self.state.decision.phase == "warmup":
            return self._start()
        return self._trial() if self.state.decision.phase == "explore" else self._hold()

    def restart(self, reason: str) -> Verdict:
        """Measure dense steps again, with nothing known."""
        self.state = AutoState(decision=self.state.decision)
        return self._conclude("reexplore", reason, DENSE, "warmup", MORE_STEPS)

    def _start(self) -> Verdict:
        if self.measured is None:
            view = self.view(None)
            option = timemodel.clear_start(self.space, view.untried(), view.efficiency)
            if option is not None:
                return self._try_at_once(view, option)
            self.change(waited=self.state.waited + 1)
            steps = MORE_STEPS if self.state.waited < PATIENCE else None
            reason = "No dense step has settled yet: measuring more of them."
            return self._conclude("extend", reason, DENSE, "warmup", steps)
        return self._search(self.note(self.measured))

    def _trial(self) -> Verdict:
        if self.measured is None:
            self.change(waited=self.state.waited + 1)
            if self.state.waited < PATIENCE:
                reason = (
                    f"Too few settled steps to judge {self._label(self.plan)}: trying it for another window."
                )
                return self._conclude("extend", reason, self.plan, "explore", TRIAL_STEPS)
            self.rest(self.plan)
            view = self.view(None)
            plan = self._safe(view)
            reason = (
                f"{self._label(self.plan)} gave no settled step in {PATIENCE} windows: {self._back(plan)}."
            )
            return self._conclude("saturated", reason, plan, "hold", None, view)
        return self._search(self.note(self.measured))

    def _hold(self) -> Verdict:
        found = self.measured
        if found is None:
            reason = f"Too few settled steps to judge: holding {self._label(self.plan)}."
            return self._conclude("hold", reason, self.plan, "hold", None)
        reference, noise_known = self.state.reference, self.state.confirmed is not None
        if reference is None:
            row = self.note(found)
            self.change(reference=row.step_seconds, reference_exposed=row.exposed_seconds)
        else:
            off = abs(found.step_seconds - reference)
            allowed = max(LEAST_MOVE, NOISES_TO_MOVE * self.state.noise) * reference
            if off > allowed:
                return self._moving(found, reference, found.step_seconds > reference)
            if self._network_moved(found, reference, allowed):
                waited = found.exposed_seconds or 0.0
                return self._moving(found, reference, waited > self.state.reference_exposed)
            noise = self.state.noise + 0.1 * (1.25 * off / max(1e-9, reference) - self.state.noise)
            reference += 0.2 * (found.step_seconds - reference)
            exposed = self.state.reference_exposed
            if found.exposed_seconds is not None:
                exposed += 0.2 * (found.exposed_seconds - exposed)
            self.change(reference_exposed=max(0.0, exposed))
            self.change(reference=reference, noise=min(1.0, max(0.0, noise)), off=0)
            row = self.note(found, weight=0.3)
        return self._bounded(row, first=self.state.confirmed is not None and not noise_known)

    def _network_moved(self, found: Measurement, reference: float, allowed: float) -> bool:
        """Return whether the wait for the network doubled or halved, and that would matter in dense steps.

        A plan that sends a hundredth waits for some ms, and as much is noise of a step.
        """
        was, now = self.state.reference_exposed, found.exposed_seconds
        if (
            now is None
            or max(was, now) < TWICE * min(was, now)
            or not self._waits_differently(found, reference)
        ):
            return False
        return abs(now - was) * self.space.fewer(self.plan) > allowed

    def _waits_differently(self, found: Measurement, reference: float) -> bool:
        """Return whether the wait for the network is off by more than the noise of a step."""
        now = found.exposed_seconds
        return now is not None and abs(now - self.state.reference_exposed) > self.state.noise * reference

    def _moving(self, found: Measurement, reference: float, slower: bool) -> Verdict:
        """The step time, or the wait in it, is off: twice in a row to the same side it has moved."""
        was, now = (
            self._times(reference, self.state.reference_exposed),
            self._times(found.step_seconds, found.exposed_seconds or 0.0),
        )
        off = self.state.off + 1 if self.state.slower == slower else 1  # noise goes both ways
        self.change(off=off, slower=slower, fitting=0)
        if self.state.off < IN_A_ROW:
            reason = (
                f"A step took {now}, before {was}: holding {self._label(self.plan)}, and looking again if the next "
                "window says the same."
            )
            return self._conclude("hold", reason, self.plan, "hold", None)
        # Where a step moved and its wait did not, computing did: that says nothing of the network.
        if self._waits_differently(found, reference):
            self.follow_network(found)
        seen = tuple(row.model_copy(update={"fresh": False}) for row in self.state.seen)
        self.change(seen=seen, resting=(), trials=0, off=0, outside=0, noise=max(self.state.noise, NOISE))
        self.change(freed=not slower, looks=0, unlooked=0)
        row = self.note(found)
        self.change(reference=row.step_seconds, reference_exposed=row.exposed_seconds)
        return self._search(row, moved=f"Steps went from {was} to {now}")

    def _bounded(self, row: Seen, *, first: bool) -> Verdict:
        """Hold, unless the efficiency left the bound or another plan is predicted to win, twice in a row.

        Args:
            row: The plan in force as measured.
            first: This window is the first to show the noise of the gradient, so that plans are judged by it now.
        """
        likely, least = row.efficiency, 1.0 - (1.0 + SLACK) * self.accepted
        outside = likely is not None and self.plan != DENSE and likely < least
        self.change(outside=self.state.outside + 1 if outside else 0)
        if self.state.outside >= IN_A_ROW:
            assert likely is not None
            self.rest(self.plan)
            self.change(outside=0, trials=MOST_TRIALS - 1)
            left = self._too_much(self.plan, likely)
            return self._search(row, left=left)
        self.wake()
        view = self.view(row)
        other = view.best(
            plan
            for plan in (*view.untried(), *view.tried())
            if plan != self.plan and plan not in view.resting
        )
        wins = other is not None and self._wins(view, other, self.plan)
        if not wins:
            other = next((plan for plan in view.doubtful() if self._wins(view, plan, self.plan)), None)
            wins = other is not None
        self.change(fitting=self.state.fitting + 1 if wins else 0)
        if other is None or self.state.fitting < (1 if first else IN_A_ROW):
            self.change(unlooked=self.state.unlooked + 1)
            if self.plan != DENSE and self.state.unlooked >= self._patience(view):
                why = f"Dense steps were not measured for {self.state.unlooked} windows"
                self.change(trials=MOST_TRIALS, looks=self.state.looks + 1, unlooked=0)
                return self._try(view, DENSE, row, why)
            return self._conclude("hold", self._holding(row, view), self.plan, "hold", None, view)
        self.change(trials=MOST_TRIALS)
        return self._try(view, other, row)

    def _patience(self, view: Outlook) -> float:
        """Return the windows in hold before dense is measured again, so that it costs little; doubled each time."""
        steps = self.report.last_step - self.report.first_step + 1
        cost = max(0.0, view.seconds(DENSE) / view.seconds(self.plan) - 1.0) * TRIAL_STEPS / steps
        return float(max(FIRST_LOOK, cost / LOOK_COST) * 2 ** min(self.state.looks, LOOK_DOUBLINGS))

    def _search(self, row: Seen, moved: str = "", left: str = "") -> Verdict:
        """Try the plan that is predicted best, or hold the best that was measured."""
        view = self.view(row)
        if not left and not view.keeps(row.plan):
            self.rest(row.plan)
            view = self.view(row)
        tried, option = view.best(view.tried()), self._option(view)
        if tried is not None and DENSE in view.tried() and not self._wins(view, tried, DENSE):
            tried = DENSE  # nothing is lost by it
        hold = self._safe(view) if tried is None else tried
        if option is not None and (tried is None or self.state.trials < MOST_TRIALS):
            wins = tried is None or self._wins(view, option, tried)
            if not wins and self.state.trials == 0 and tried == DENSE and not moved:
                option = max(view.untried() or [option], key=view.most)
                wins = view.most(option) > (1.0 + HIDDEN) * view.score(DENSE)
            if wins:
                self.change(trials=self.state.trials + 1)
                rule: KnownRule = "reexplore" if moved else "scale_down" if left else "explore"
                return self._try(view, option, row, moved or left, rule)
        doubt = DOUBT * (TWICE if self.state.freed else 1.0)
        if not view.fresh(DENSE) and view.seconds(DENSE) < doubt * view.seconds(hold):
            self.change(freed=False)
            return self._try(view, DENSE, row, moved)
        ended, reason = self._settled(view, hold, option, moved, left)
        if hold != self.plan or not moved:
            self.change(reference=None)
        self.change(fitting=0, off=0, waited=0)
        return self._conclude(ended, reason, hold, "hold", None, view)

    def _option(self, view: Outlook) -> Plan | None:
        """Return the plan to try next: the best that is expected to keep the bound, else one that may."""
        tried, sure = view.best(view.tried()), view.best(view.untried())
        if sure is not None and (tried is None or self._wins(view, sure, tried)):
            return sure
        doubtful = [] if self.noise_follows else view.doubtful()
        return next((plan for plan in doubtful if tried is None or self._wins(view, plan, tried)), sure)

    def _wins(self, view: Outlook, plan: Plan, other: Plan) -> bool:
        """Return whether a plan is predicted to be better than another one by more than the margin."""
        return view.score(plan) > (1.0 + self.margin) * view.score(other)

    def _settled(
        self, view: Outlook, hold: Plan, option: Plan | None, moved: str, left: str
    ) -> tuple[KnownRule, str]:
        """Return rule and reason of holding a plan at the end of a search."""
        step = _seconds(view.seconds(hold))
        if left:
            return "scale_down", f"{left}: {self._back(hold)}."
        if moved:
            return "reexplore", f"{moved}: {self._label(hold)} is still predicted best, {step} a step."
        if hold == DENSE and self.state.trials == 0:
            wait = view.seen[DENSE].exposed_seconds if DENSE in view.seen else 0.0
            if len(self.space.plans) == 1:
                return "no_headroom", f"Dense steps take {step}, and there is no other plan: staying dense."
            if option is None:
                kept = format_percent(1.0 - self.accepted)
                why = f"no plan is expected to keep {kept} of the progress of a step"
            else:
                why = f"the best other plan, {self._label(option)}, is not predicted to win"
            return "no_headroom", (
                f"Dense steps take {step}, {_seconds(wait)} of it waiting for the network, and {why}: staying dense."
            )
        shown = [plan for plan in view.tried() if plan != hold]
        others = ", ".join(f"{self._label(plan)} takes {_seconds(view.seconds(plan))}" for plan in shown)
        best = (
            f"Best of {len(shown) + 1} measured plans: {self._label(hold)}, {step} a step"
            if shown
            else f"{self._label(hold)} stays: {step} a step"
        )
        if hold != DENSE:
            best += (
                f", expected to keep {format_percent(view.efficiency(hold) or 0.0)} of the progress of each"
            )
        return "saturated", f"{best}; {others}." if shown else f"{best}."

    def _try(
        self, view: Outlook, option: Plan, row: Seen, why: str = "", rule: KnownRule = "explore"
    ) -> Verdict:
        base = row.plan if view.keeps(row.plan) or not view.fresh(DENSE) else DENSE
        times = view.score(option) / max(1e-30, view.score(base))
        kept = format_percent(view.efficiency(option) or 0.0)
        if not why and not view.keeps(row.plan):
            why = self._too_much(row.plan, view.efficiency(row.plan) or 0.0)
        row = view.seen.get(base, row)
        beginning = f"{why}. " if why else ""
        name = "Dense steps take" if base == DENSE else f"Steps with {self._label(base)} take"
        fewer = view.space.fewer(option)
        if option == DENSE and DENSE not in view.seen:
            reason = (
                f"{beginning}{name} {_seconds(row.step_seconds)}, {_seconds(row.exposed_seconds)} of it waiting for "
                f"the network, and dense ones are predicted to take {_seconds(view.seconds(DENSE))}: measuring them."
            )
            self.change(waited=0, fitting=0, off=0, reference=None)
            return self._conclude(rule, reason, option, "explore", TRIAL_STEPS, view)
        sends = "" if option == DENSE else f" sends {format_number(fewer)} times less than dense and"
        reason = (
            f"{beginning}{name} {_seconds(row.step_seconds)}, {_seconds(row.exposed_seconds)} of it waiting "
            f"for the network; {self._label(option)}{sends} is expected to keep {kept} of the progress per step"
            f"{self._noise(option)}: trying it, predicted {format_number(times)} times the useful throughput"
            f"{' of dense' if base == DENSE and row.plan != self.plan else ''}."
        )
        self.change(waited=0, fitting=0, off=0, reference=None)
        return self._conclude(rule, reason, option, "explore", TRIAL_STEPS, view)

    def _try_at_once(self, view: Outlook, option: Plan) -> Verdict:
        """Try a plan before step times are known, as the network is slow."""
        self.change(waited=0, trials=1)
        return self._conclude("explore", at_once(view, option), option, "explore", TRIAL_STEPS, view)

    def _noise(self, plan: Plan) -> str:
        """Return why a plan is expected to lose less than it did in simulations; empty where it is not."""
        confirmed = self.state.confirmed
        if confirmed is None or efficiency.noise_times(self.space.codec(plan), confirmed) >= 1.0:
            return ""
        return f", as {format_percent(1.0 - confirmed)} of the mean gradient is noise"

    def _too_much(self, plan: Plan, likely: float) -> str:
        """Return why a plan is left, or not held, whose efficiency this is."""
        return (
            f"{self._label(plan)} loses {format_percent(1.0 - likely)} of the progress of a step, and at most "
            f"{format_percent(self.accepted)} is accepted"
        )

    def _holding(self, row: Seen, view: Outlook) -> str:
        step = f"steps take {_seconds(row.step_seconds)}, {_seconds(row.exposed_seconds)} of it waiting for the network"
        if self.plan == DENSE:
            return f"Staying dense: {step}, and no other plan is predicted to win."
        kept = format_percent(view.efficiency(self.plan) or 0.0)
        return (
            f"Holding {self._label(self.plan)}: {step}, and each is expected to keep {kept} of the progress."
        )

    def _safe(self, view: Outlook) -> Plan:
        """Return the plan to hold when the one in force was given up: the best measured, else dense."""
        return view.best(plan for plan in view.tried() if plan != self.plan) or DENSE

    @staticmethod
    def _times(step: float, exposed: float) -> str:
        return f"{_seconds(step)} ({_seconds(exposed)} waiting)"

    def _label(self, plan: Plan) -> str:
        return self.space.label(plan)

    def _back(self, plan: Plan) -> str:
        return "going back to dense" if plan == DENSE else f"holding {self._label(plan)}"

    def _conclude(
        self,
        rule: KnownRule,
        reason: str,
        plan: Plan,
        phase: Phase,
        window_steps: int | None,
        view: Outlook | None = None,
    ) -> Verdict:
        """Return the decision for a plan."""
        view = self.view(None) if view is None else view
        gain = gain_of(self.report, self.plan.cf, self.plan.codec)
        gains = {} if gain is None else {self.plan: gain}
        decision = next_decision(
            self.state.decision,
            self.report,
            rule,
            reason[:1000],
            phase=phase,
            minimum=plan.cf,
            candidate=plan.cf,
            candidates=view.candidates(plan, phase == "explore", self.samples, gains),
            epsilon=0.0,
            codec=plan.codec,
            window_steps=window_steps,
        )
        return Verdict(decision, self.state.model_copy(update={"decision": decision}))


def at_once(view: Outlook, option: Plan) -> str:
    """Return why a plan is tried before step times are known."""
    space, kept = view.space, format_percent(view.efficiency(option) or 0.0)
    return (
        f"On this network dense steps exchange gradients for about {_seconds(space.costs[DENSE].seconds or 0.0)}; "
        f"{space.label(option)} takes about {_seconds(space.costs[option].seconds or 0.0)} and is expected to keep "
        f"{kept} of the progress per step: trying it at once."
    )
