"""The agent's step loop on one rank: end a step, learn what all ranks know, plan the next, close windows."""

import logging
from collections import Counter
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.protocol import Event
from gravac.signals.gain import GainTracker
from gravac_agent.errors import AgreementError
from gravac_agent.exchange.clock import StepClock
from gravac_agent.exchange.encode import Encoder, named
from gravac_agent.exchange.engine import Engine
from gravac_agent.exchange.plan import Directive, Plan, next_plan
from gravac_agent.exchange.survey import surveyed
from gravac_agent.reporting.desk import Desk
from gravac_agent.windows.listing import Listing
from gravac_agent.windows.window import ROW_SIZE, Row, Window, build_report

log = logging.getLogger("gravac.agent")


class StepLoop:
    """Runs on the training thread, once a step, after backward and before the optimiser.

    Plans are made two steps ahead: the tick of step s carries the fingerprint of the plan of step s+1 and the energies
    from which the plan of step s+2 follows. So a disagreement is known before any collective of step s+1.
    """

    def __init__(
        self,
        *,
        group: dist.ProcessGroup,
        rank: int,
        encoder: Encoder,
        tracker: GainTracker,
        setup: str,
        window_steps: int,
        settle_steps: int,
        desk: Desk | None,
        directive: Directive,
        job: str,
        incarnation: str,
        unstable: Callable[[float], str | None],
        rank_rows: int,
        step_rows: int,
    ) -> None:
        self.rank, self._group, self._encoder, self.tracker = rank, group, encoder, tracker
        self._dropped = 0
        self._setup, self._window_steps, self._settle_steps = setup, window_steps, settle_steps
        self._desk, self._job, self._incarnation = desk, job, incarnation
        self._rank_rows = rank_rows
        self._step_rows = 0 if desk is None else step_rows
        self._listing = Listing(self._step_rows, group.size())
        self.clock = StepClock()
        self.step = 0
        self.window = Window(0, 0)
        self.plan = next_plan(directive, tracker)
        self.following = self.plan
        self._unstable, self._looked_at = unstable, {1.0}
        self._at_this_level = 0
        self.steps_at: Counter[float] = Counter()
        """Steps by the CF that they sent."""
        self.dense_bytes = 0
        self.payload_bytes = 0
        self.nonfinite_steps = self.failed_steps = 0

    def announce(self) -> tuple[Directive, tuple[int, int, int]]:
        """What this rank says in the tick of the running step (exchange thread)."""
        directive = self.following.directive if self._desk is None else self._desk.directive
        return directive, self.following.fingerprint(self._setup)

    def finish(self, engine: Engine) -> bool:
        """End the running step; True when it counts, False when a rank had a non-finite gradient.

        Raises AgreementError, on all ranks, when they do not agree on the next plan, and whatever a collective raised.
        """
        outcome = engine.outcome()
        tick, sums = outcome.tick, outcome.tick.sums
        overflowed = not outcome.finite and not sums.nonfinite
        if overflowed:
            sums.nonfinite = self._group.size()  # the mean is the same everywhere
            sums = sums.flagged()
        counts = sums.nonfinite == 0
        if counts:
            if not sums.failed:
                self._encoder.aggregator.learn(tick.means)
            self._encoder.commit()
            for cf, kept_sq in zip(self.plan.measured, (sums.minimum_sq, sums.candidate_sq), strict=False):
                self.tracker.update(cf, kept_sq, sums.compensated_sq)
        else:
            self._encoder.rollback()
            self._look_at_dropped()
            self.nonfinite_steps += 1
            what = "the mean gradient overflowed" if overflowed else "a non-finite gradient"
            self._note("nonfinite", f"Step {self.step}: {what} on {sums.nonfinite:.0f} rank(s).")
        for sentence in self._encoder.take_notes():
            self._note("note", sentence)
        if self._encoder.failing.due(sums.failed > 0):
            engine.call(self._settle_failing)  # before any bucket of the next step, on all ranks
        if sums.failed:
            self.failed_steps += 1
            self._note(
                "failed",
                f"Step {self.step}: compression failed on {sums.failed:.0f} rank(s); see their logs.",
            )
        self._at_this_level += 1
        settled = self._at_this_level > self._settle_steps
        lap = self.clock.lap(outcome)
        self.window.add(self.plan, sums, lap, outcome.dense_bytes, outcome.payload_bytes, settled)
        self._listing.add(self.step, self.plan, sums, lap, outcome.payload_bytes)
        self.window.add_mean(self.plan, sums, outcome.mean_sq)
        self.window.row.agent_cpu += outcome.cpu_seconds
        if counts:
            self.window.survey(outcome.curve)
        self.steps_at[self.plan.cf] += 1
        self.dense_bytes += outcome.dense_bytes
        self.payload_bytes += outcome.payload_bytes
        if not tick.agreed:
            raise AgreementError(
                f"step {self.step}: ranks disagree on the next step's plan; rank {self.rank} has {self.following}. "
                "No gradient was exchanged under it. Ranks must run the same code and load the same checkpoint."
            )
        self._advance(tick.directive)
        engine.begin(self.plan, self.step)
        return counts

    def surveyed(self, step: int) -> bool:
        """Whether ``step``, the next to begin, draws the curve of gain against CF."""
        return surveyed((step - self.window.first_step) % self._window_steps, self._window_steps)

    @property
    def full(self) -> bool:
        """Whether the window is over and waits to be closed."""
        return self.step - self.window.first_step >= self._window_steps

    def _advance(self, directive: Directive) -> None:
        before, self.plan = self.plan, self.following
        if (before.cf, before.directive.epoch) != (self.plan.cf, self.plan.directive.epoch):
            self._at_this_level = 0
            self._look_at(self.plan.cf)
        self.following = next_plan(directive, self.tracker)
        self.tracker.forget_except(frozenset(self.plan.measured + self.following.measured))
        self.step += 1

    def close_window(self, engine: Engine, samples: int) -> None:
        """At the start of the next step, when everything of the last one is known: gather rows, report on rank 0.

        Every rank calls it at the same step. The gather runs on the exchange thread, before any bucket of the new step.
        """
        for sentence in self._encoder.aggregator.notes():
            self._note("note", sentence, logging.INFO)
        window, self.window = self.window, Window(self.window.number + 1, self.step)
        window.row.memory_bytes = self._encoder.memory.nbytes()
        window.row.samples = samples
        listing, self._listing = self._listing, Listing(self._step_rows, self._group.size())
        gains = dict(self.tracker.gains())
        engine.call(lambda: self._gather(window, gains, listing))

    def _gather(self, window: Window, gains: dict[float, float], listing: Listing) -> None:
        try:
            mine = torch.cat((torch.tensor(window.row.values(), dtype=torch.float64), window.curve_sums()))
            rows = [torch.empty_like(mine) for _ in range(self._group.size())]
            dist.all_gather(rows, mine, group=self._group)
            if self._desk is not None:
                everyone = [Row(*row[:ROW_SIZE].tolist()) for row in rows]
                curve = window.curve_of(rows, own=self._encoder.aggregator.keeps_largest)
                self._desk.put(
                    build_report(
                        window,
                        everyone,
                        gains,
                        curve,
                        self._job,
                        self._incarnation,
                        self._rank_rows,
                        listing.detail(),
                    )
                )
        except Exception:  # a report is worth less than the training
            log.exception("window %d could not be reported", window.number)

    def _settle_failing(self) -> None:
        try:
            for names in self._encoder.failing.settle(self._group):
                self.agree_on(f"dense {names}")
                self._encoder.say(
                    f"Compressing {named(names)} keeps failing: it is sent densely from now on."
                )
        except Exception:  # the next collective fails, too, and is raised where the training sees it
            log.exception("ranks could not agree on buckets that keep failing")

    def _look_at(self, cf: float) -> None:
        """Warn, once a CF, when the memory may grow without limit under it."""
        if cf not in self._looked_at:
            self._looked_at.add(cf)
            warning = self._unstable(cf)
            if warning is not None:
                self._note("note", warning)

    def _look_at_dropped(self) -> None:
        """Say so when the memory had to give up what it owed (on rank 0; each rank logs its own)."""
        dropped = self._encoder.memory.dropped
        if dropped > self._dropped:
            self._dropped = dropped
            self._note(
                "note",
                f"Step {self.step}: what the error memory of rank {self.rank} owed had overflowed and was dropped.",
            )

    def _note(self, kind: str, message: str, level: int = logging.WARNING) -> None:
        log.log(level, message)
        if self._desk is not None:
            self._desk.note(
                Event.model_validate({"kind": kind, "window": self.window.number, "message": message})
            )

    def forget_gains(self, why: str) -> None:
        """What is sent changes its meaning: gains are measured anew, so the next step is dense."""
        self.tracker.averages.clear()
        self._looked_at = {1.0}
        self.plan = self.following = next_plan(self.following.directive, self.tracker)
        self._at_this_level = self._dropped = 0
        self._note("note", why)

    def agree_on(self, more: str) -> None:
        """Something else that must be the same on all ranks; where it is not, they disagree on the next plan."""
        self._setup += f"|{more}"

    def restore_learnt(self, state: dict[str, Tensor]) -> None:
        """Give the aggregator what it had learnt. Ranks that were given different things disagree on the next plan."""
        aggregator = self._encoder.aggregator
        aggregator.load_state_dict(state)
        self.agree_on(aggregator.state_digest())

    def restore(self, plan: Plan, following: Plan, step: int, window: int) -> None:
        """Go on where a checkpoint was taken (before the first step)."""
        self.plan, self.following, self.step = plan, following, step
        self.window = Window(window, step)
