"""The rule that chooses a plan: from beliefs to a choice. ``say.py`` puts it into words.

A job measures dense steps (warmup), or on a slow network tries a plan at once. It then tries plans (explore) while one
is predicted to win, fits into the price of trials and keeps the bound, and holds the best that it measured (hold).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gravac.policies import trials
from gravac.policies.auto.beliefs import (
    FAR,
    IN_A_ROW,
    MOST_DOUBLINGS,
    NO_TIMES,
    Belief,
    Lesson,
    Times,
    believe,
    failed,
    rested,
)
from gravac.policies.auto.settings import AutoState, Beliefs
from gravac.policies.auto.table import PlanTable
from gravac.policies.base import DENSE, Plan
from gravac.protocol import Phase, WindowReport

START_STEPS, MORE_STEPS = 1, 2
"""Steps of the first dense window, which suffices where the network was measured, and of those after it. With the
agents' default the fourth step is the first settled one, and about three follow until a decision is in force.
[steps; chosen]"""
PATIENCE = 6
"""Windows without enough settled steps after which a start takes windows of normal length, and a trial is given up;
its plan then rests for as many. [windows; chosen]"""
MOST_TRIALS = 3
"""Plans tried in one search; more while none that was measured keeps the bound. [plans; chosen]"""
TO_WIN, NOISES_TO_WIN = 0.02, 2.0
"""Another plan must promise more than 2 % and twice the noise. [share, times; chosen]"""
CLEARLY = 3.0
"""A plan is tried before step times are known if it saves this many times its coding time. [times; chosen]"""
AS_MUCH = 0.05
"""Share of the savings within which plans with late gradients count as equal: the mildest is tried. [share; chosen]"""
FIRST_LOOK = 50
"""Windows in hold before dense steps are looked at again; twice as many each time, up to 16 times as many.
[windows; chosen]"""

What = Literal[
    "restart",  # the plans are others
    "more_dense",  # no dense step has settled
    "more_trial",  # too few steps of a trial have settled
    "given_up",  # none ever did
    "unsettled",  # too few steps of the held plan have settled
    "suspected",  # its times are off, for the first time
    "held",  # nothing changed
    "tried",  # a plan is tried
    "tried_at_once",  # the same, before any step time is known
    "settled",  # a search ended
    "dense_stays",  # it ended without a trial
]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a search began.

    Attributes:
        left: The plan before was left, or not held, because of its efficiency.
        was: Its times before, where they moved.
        now: Its times in the window.
        ended: Seconds of the step that ended its trial; None: it was not ended.
        unlooked: Windows since dense steps were measured, where that is why they are tried; 0: it is not.
    """

    left: bool = False
    was: Times | None = None
    now: Times = NO_TIMES
    ended: float | None = None
    unlooked: int = 0


NO_CAUSE = Cause()


@dataclass(frozen=True, slots=True)
class NextPlan:
    """What to do next, and the evidence.

    Attributes:
        what: Which branch of the rule.
        plan: Plan to send.
        phase: Phase of the search.
        window_steps: Steps of the next window; None: the job's.
        rows: What is believed of every plan.
        before: Plan in force until now.
        base: Plan that a trial must beat, and that is held again where it does not.
        option: Best other plan, of a search that ended with dense.
        toward: Plan that a trial is on the way to, as that one sends far more than was ever sent; None: to none.
        cause: Why a search began.
        trial_limit: Seconds from which a step ends the trial; None: no trial.
        sent_cf: Dense bytes / payload bytes of the window, as sent; None: not known.
    """

    what: What
    plan: Plan
    phase: Phase
    rows: tuple[Belief, ...]
    before: Plan
    window_steps: int | None = None
    base: Plan = DENSE
    option: Plan | None = None
    toward: Plan | None = None
    cause: Cause = NO_CAUSE
    trial_limit: float | None = None
    sent_cf: float | None = None

    def row(self, plan: Plan) -> Belief:
        """Return what is believed of a plan."""
        return next(row for row in self.rows if row.plan == plan)


@dataclass(slots=True)
class Search:
    """One window as the rule sees it. ``choose`` answers it, and ``state`` is then that after it.

    Attributes:
        table: The job's plan table.
        state: State before the window, with beliefs as learned from it.
        lesson: What the window taught.
        report: The window.
    """

    table: PlanTable
    state: AutoState
    lesson: Lesson
    report: WindowReport
    rows: tuple[Belief, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.change(beliefs=self.lesson.beliefs)

    def change(self, **changes: Any) -> None:
        """Change fields of the state, and what follows from it."""
        self.state = self.state.model_copy(update=changes)
        if "beliefs" in changes:
            self.rows = believe(
                self.table, self.beliefs, self.lesson.plan, self.report.window, self.report.last_step + 1
            )

    @property
    def beliefs(self) -> Beliefs:
        """The beliefs as learned from the window."""
        return self.state.beliefs

    @property
    def plan(self) -> Plan:
        """The plan in force during the window."""
        return self.lesson.plan

    def row(self, plan: Plan) -> Belief:
        """Return what is believed of a plan."""
        return next(row for row in self.rows if row.plan == plan)

    def choose(self) -> NextPlan:
        """Return what to do after the window."""
        phase = self.state.decision.phase
        if phase == "hold":
            return self._hold()
        if not self.lesson.settled and self.lesson.ended is None:
            return self._wait_for_steps(phase)
        return self._search()

    def _wait_for_steps(self, phase: Phase) -> NextPlan:
        """Go on with a dense start or a trial that gave too few settled steps."""
        waited = self.state.waited + 1
        self.change(waited=waited)
        if phase == "warmup":
            option = at_once(self.table, self.rows)
            if option is not None:
                self.change(waited=0, trials=1)
                return self._choice("tried_at_once", option, "explore", window_steps=trials.TRIAL_STEPS)
            return self._choice(
                "more_dense", DENSE, "warmup", window_steps=MORE_STEPS if waited < PATIENCE else None
            )
        if waited < PATIENCE:
            # The first plan of a job has none, as nothing was measured that it could be compared with.
            trial = self.state.decision.trial
            return self._choice(
                "more_trial",
                self.plan,
                "explore",
                window_steps=trials.TRIAL_STEPS,
                trial_limit=None if trial is None else trial.step_seconds,
            )
        self.change(beliefs=rested(self.beliefs, self.plan, self.report.window + PATIENCE), waited=0)
        return self._choice("given_up", self._safe(), "hold")

    def _hold(self) -> NextPlan:
        lesson, mine = self.lesson, self.row(self.plan)
        outside = self.state.outside + 1 if not mine.keeps else 0
        self.change(outside=outside)
        if outside >= IN_A_ROW:
            return self._leave()
        if not lesson.settled:
            return self._choice("unsettled", self.plan, "hold")
        if lesson.was is not None:
            if not lesson.moved:
                cause = Cause(was=lesson.was, now=lesson.now)
                return self._choice("suspected", self.plan, "hold", cause=cause)
            self.change(trials=0, looks=0, unlooked=0)
            return self._search(was=lesson.was)
        return self._better_or_hold(mine)

    def _leave(self) -> NextPlan:
        """Give up the plan in force because of its efficiency."""
        self.change(
            beliefs=failed(self.beliefs, self.plan, self.report.window), outside=0, trials=MOST_TRIALS - 1
        )
        return self._search(left=True)

    def _better_or_hold(self, mine: Belief) -> NextPlan:
        """Hold, unless another plan is predicted to win."""
        others = [row for row in self.rows if row.plan != self.plan and not row.resting]
        option = self.option(others, mine)
        if option is not None:
            self.change(trials=MOST_TRIALS)
            return self._try(option, mine)
        rival = self._rival(mine)
        if rival is not None:
            return self._try(rival, mine)
        unlooked = self.state.unlooked + 1
        self.change(unlooked=unlooked)
        dense = self.row(DENSE)
        due = unlooked >= FIRST_LOOK << min(self.state.looks, MOST_DOUBLINGS)
        unknown = dense.measured is None and self._may_win(dense, mine)
        if self.plan != DENSE and (due or unknown):
            step, toward = self._step_to(dense, mine)
            if step is not None:
                looks = self.state.looks + 1 if due else self.state.looks
                self.change(trials=MOST_TRIALS, looks=looks, unlooked=0)
                return self._try(step, mine, Cause(unlooked=unlooked if due else 0), toward)
        sent, dense_bytes = self.report.payload_bytes, self.report.dense_bytes
        return self._choice("held", self.plan, "hold", sent_cf=dense_bytes / sent if sent else None)

    def _search(self, was: Times | None = None, left: bool = False) -> NextPlan:
        """Try the plan that is predicted best, or hold the best that was measured."""
        mine, lesson = self.row(self.plan), self.lesson
        if not left and not mine.keeps and lesson.settled:
            self.change(beliefs=failed(self.beliefs, self.plan, self.report.window))
            left = True
        measured = [row for row in self.rows if row.fresh and row.keeps and not row.resting]
        best, dense = self._mildest(measured), self.row(DENSE)
        if best is not None and dense in measured and not self._wins(best, dense):
            best = dense  # nothing is lost by it
        hold = best or dense
        more = best is None or self.state.trials < MOST_TRIALS
        option = self.option([row for row in self.rows if not row.fresh and not row.resting], best)
        cause = Cause(left, was, lesson.now, lesson.ended)
        if option is not None and more:
            self.change(trials=self.state.trials + 1)
            return self._try(option, hold, cause)
        rival = self._rival(hold)
        if rival is not None:
            self.change(trials=self.state.trials + 1)
            return self._try(rival, hold, cause)
        if not dense.fresh and self._may_win(dense, hold):
            step, toward = self._step_to(dense, hold)
            if step is not None and (toward is None or self.state.trials < 2 * MOST_TRIALS):
                self.change(trials=self.state.trials + 1)
                return self._try(step, hold, cause, toward)
        untried = self.state.trials == 0 and hold.plan == DENSE and was is None and not left
        other = self._predicted([row for row in self.rows if row.plan != DENSE and row.keeps])
        if hold.plan != self.plan or was is None:
            self.change(beliefs=self.beliefs.model_copy(update={"reference": None}))
        self.change(waited=0, outside=0)
        return self._choice(
            "dense_stays" if untried else "settled",
            hold.plan,
            "hold",
            option=None if other is None else other.plan,
            cause=cause,
        )

    def option(self, rows: Sequence[Belief], best: Belief | None) -> Belief | None:
        """Return the plan to try next that wins over the best one: that keeps the bound, else one that may.

        The first trials of a job under an optimizer whose backlog says nothing make no difference between the two.
        """
        held = self._held_seconds(best)
        left = self._left()
        affordable = [row for row in rows if row.plan != DENSE and trials.affordable(row.worst, held, left)]
        # From the optimizer's own state a trial shows most. A later one starts from what another plan left.
        first = all(row.measured is None or row.plan in (DENSE, self.plan) for row in self.rows)
        early = first and not self.table.telling
        sure = self._mildest([row for row in affordable if row.keeps or (early and row.doubtful)], best)
        if sure is not None:
            return sure
        dense = next((row for row in rows if row.plan == DENSE), None)
        if dense is not None and best is not None and self._wins(dense, best):
            step, _ = self._step_to(dense, best)
            if step is not None:
                return step
        if self.lesson.noise_follows or not self.table.telling:
            return None
        doubtful = sorted(
            (row for row in affordable if row.doubtful), key=lambda row: -(row.efficiency or 0.0)
        )
        return next((row for row in doubtful if best is None or self._wins(row, best)), None)

    def _mildest(self, rows: Iterable[Belief], over: Belief | None = None) -> Belief | None:
        """Return the best plan; of those that cannot be told from it, the one that keeps most, then that sends most.

        Args:
            rows: Plans to choose from.
            over: A plan over which it must win; None: none.
        """
        winning = [row for row in rows if over is None or self._wins(row, over)]
        best = self._predicted(winning)
        if best is None:
            return None
        alike = [row for row in winning if _tie(row, best)]
        return max(alike, key=lambda row: (row.efficiency or 0.0, row.facts.link_bytes))

    @staticmethod
    def _predicted(rows: Iterable[Belief]) -> Belief | None:
        """Return the plan with the highest useful throughput; None of none."""
        return max(rows, key=lambda row: row.score, default=None)

    def _wins(self, row: Belief, over: Belief) -> bool:
        """Return whether a plan is predicted to be better than another by more than the margin."""
        return row.score > (1.0 + max(TO_WIN, NOISES_TO_WIN * self.beliefs.noise)) * over.score

    def _may_win(self, row: Belief, over: Belief) -> bool:
        """Return whether a plan may be better than another, by the error of its prediction."""
        return (row.efficiency or 0.0) / row.least > (1.0 + TO_WIN) * over.score

    def _rival(self, held: Belief) -> Belief | None:
        """Return what torch's own bf16 hook sends, where the job is on a device and that is yet to be measured.

        A user has it for a line of code. So it is tried where it may win, by the error of its prediction.
        """
        if self.table.rival is None:
            return None
        row = self.row(self.table.rival)
        if row.fresh or row.resting or not row.keeps or not self._may_win(row, held):
            return None
        return row if trials.affordable(row.worst, self._held_seconds(held), self._left()) else None

    def _step_to(self, row: Belief, held: Belief) -> tuple[Belief | None, Plan | None]:
        """Return the plan to try, and where it leads to: a plan that sends far more than was ever sent comes last.

        Returns:
            The plan itself and None; or one between, and the plan; or twice None where no trial can be afforded.
        """
        largest = self.beliefs.largest
        seconds, left = self._held_seconds(held), self._left()
        if row.facts.link_bytes <= FAR * largest:
            return (row if trials.affordable(row.worst, seconds, left) else None), None
        between = [
            each
            for each in self.rows
            if largest < each.facts.link_bytes <= FAR * largest and each.keeps and not each.resting
        ]
        step = max(between, key=lambda each: each.facts.link_bytes, default=row)
        if not trials.affordable(step.worst, seconds, left):
            return None, None
        return step, None if step is row else row.plan

    def _held_seconds(self, held: Belief | None) -> float:
        """Return the seconds of a step of the plan that a trial is compared with: the best one, or else dense."""
        if held is None:
            held = self.row(DENSE)
        return held.seconds if held.fresh else held.worst

    def _left(self) -> float:
        return trials.allowance(self.beliefs.elapsed, self.beliefs.spent)

    def _limit(self, row: Belief) -> float:
        return trials.step_limit(row.seconds, self.state.held_seconds, self._left())

    def _try(
        self,
        option: Belief,
        held: Belief,
        cause: Cause = NO_CAUSE,
        toward: Plan | None = None,
    ) -> NextPlan:
        """Try a plan. ``held``: the plan to go back to."""
        back = held if held.keeps else self.row(DENSE)
        self.change(
            waited=0,
            outside=0,
            held_codec=back.plan.codec,
            held_cf=back.plan.cf,
            held_seconds=self._held_seconds(back),
            beliefs=self.beliefs.model_copy(update={"reference": None, "off": 0}),
        )
        return self._choice(
            "tried",
            option.plan,
            "explore",
            window_steps=trials.TRIAL_STEPS,
            base=back.plan,
            toward=toward,
            cause=cause,
            trial_limit=self._limit(option),
        )

    def _safe(self) -> Plan:
        """Return the plan to hold when the one in force was given up: the best measured, else dense."""
        rows = [row for row in self.rows if row.fresh and row.keeps and not row.resting]
        best = self._mildest(row for row in rows if row.plan != self.plan)
        return DENSE if best is None else best.plan

    def _choice(self, what: What, plan: Plan, phase: Phase, **evidence: Any) -> NextPlan:
        return NextPlan(what, plan, phase, self.rows, self.plan, **evidence)


def _tie(row: Belief, best: Belief) -> bool:
    """Return whether the steps of two plans differ by less than their error."""
    errors = row.error * row.error + best.error * best.error
    if not row.fresh and not best.fresh:  # both are off by the same network
        common = row.sent_error * best.sent_error
        errors = max(0.0, errors - 2.0 * common)
    return row.seconds - best.seconds <= math.sqrt(errors)


def at_once(table: PlanTable, rows: Sequence[Belief]) -> Plan | None:
    """Return the plan to try before any step time is known; None where that may not pay.

    It pays where the exchange, as measured at the start, gets shorter by three times what coding takes, whatever else a
    step does. Of such plans the one that saves most counts, weighted by what its steps are worth. Where that delays
    gradients, which costs most in a young training, it is the mildest of those that save nearly as much.

    Args:
        table: The job's plan table.
        rows: What is believed of every plan.
    """
    dense = table.dense.exchange
    found: list[tuple[float, Belief]] = []
    for row in rows:
        seconds = row.facts.exchange
        if dense is None or seconds is None or row.efficiency is None or row.plan == DENSE:
            continue
        if row.resting or not row.keeps or row.fresh:
            continue
        took = row.facts.coding
        if dense - seconds > CLEARLY * took:
            found.append((row.efficiency * (dense - seconds - took), row))
    if not found:
        return None
    most, best = max(found, key=lambda each: each[0])
    if best.facts.late:
        late = [row for saved, row in found if row.facts.late and saved >= (1.0 - AS_MUCH) * most]
        best = max(late, key=lambda row: row.facts.link_bytes)
    return best.plan
