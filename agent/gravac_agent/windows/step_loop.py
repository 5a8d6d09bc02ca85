"""The end of a step on one rank: commit or roll back, plan the next step, close windows."""

import logging
from collections.abc import Callable
from functools import partial

import torch.distributed as dist

from gravac import memories
from gravac.aggregators import CompressedReduceScatter, OneShot
from gravac.signals.gain import GainTracker
from gravac.wording import format_seconds, plan_in_words
from gravac_agent.errors import AgreementError, PeerError
from gravac_agent.exchange.channels import Channels
from gravac_agent.exchange.compensation import is_surveyed
from gravac_agent.exchange.executor import Executor
from gravac_agent.exchange.plan import Directive, StepPlan, next_plan
from gravac_agent.exchange.step import StepResult
from gravac_agent.exchange.tick import Announcement, Tick
from gravac_agent.network.doubling import Doubling
from gravac_agent.windows.clipping import Clipper
from gravac_agent.windows.meters import RunTotals, StepClock, WindowTotals
from gravac_agent.windows.notes import Notes
from gravac_agent.windows.progress import Progress
from gravac_agent.windows.report import WindowReports
from gravac_agent.windows.trials import Trials

log = logging.getLogger("gravac.agent")

SETTLE_STEPS = 3
"""Steps after a change of plan whose times do not count."""


class PlanSchedule:
    """Which step runs under which plan, and which plan follows. Equal on all ranks.

    Args:
        announcement: What this rank announces in each tick: also the plan of the step after the running one.
        tracker: Smoothed gains.
        channels: The executor's.
        notes: Says that a trial ended, or that a CF is not stable.
        group: Group of the ticks.

    Attributes:
        step: Number of the running step.
        plan: Plan of the running step.
        trials: What is known of the price of a trial.
    """

    def __init__(
        self,
        announcement: Announcement,
        tracker: GainTracker,
        channels: Channels,
        notes: Notes,
        group: dist.ProcessGroup,
    ) -> None:
        self.step, self.plan = 0, announcement.following
        self.announcement, self.tracker, self.trials = announcement, tracker, Trials()
        self._channels, self._notes, self._group = channels, notes, group
        self._checked: set[float] = set()
        self._measure_first = channels.learning_codecs()
        self.unsettled_steps = SETTLE_STEPS
        """Steps, from the running one on, whose times do not count yet."""

    @property
    def following(self) -> StepPlan:
        """Plan of the step after the running one."""
        return self.announcement.following

    def advance(self, tick: Tick, plan_seconds: Callable[[], float]) -> None:
        """Go on to the next step, and make the plan of the one after it.

        Args:
            tick: What all ranks know after the running step.
            plan_seconds: Returns what the plan answers for of the running step's time on this rank.

        Raises:
            AgreementError: The ranks do not agree on the next plan; raised on all of them.
        """
        plan, following, trials = self.plan, self.announcement.following, self.trials
        if not tick.agreed:  # on all ranks, since all hold the same sum of fingerprints
            raise AgreementError(
                f"step {self.step}: ranks disagree on the next step's plan; rank {self._group.rank()} has {following}. "
                "No gradient was exchanged under it. Ranks must run the same code and load the same checkpoint."
            )
        # A codec's first steps at a CF guess thresholds again and take longer: their times do not count.
        if following.level != plan.level:
            self.unsettled_steps = SETTLE_STEPS
        elif self.unsettled_steps:
            self.unsettled_steps -= 1
        self.plan = following
        if following.cf > 1.0 and following.codec == 0 and following.cf not in self._checked:
            self._warn_if_unstable(following)
        if tick.sums.slow == self._group.size():  # then on this rank, too
            self._end_trial(tick.directive)
        decided = tick.directive if trials.back is None else trials.in_force(tick.directive)
        new = next_plan(decided, self.tracker, self._measure_first, following)
        # Said in the tick of the step that begins now.
        self.announcement.slow = plan.priced and trials.judge(plan, self.step, plan_seconds())
        self.announcement.following = new
        if not plan.gains == following.gains == new.gains:
            self.tracker.forget_except(following.gains | new.gains)
        self.step += 1

    def _end_trial(self, decided: Directive) -> None:
        """End the trial whose step was too long on all ranks, unless ``decided`` has ended it already."""
        assert self.trials.slow is not None
        slow, step, seconds = self.trials.slow
        if self.trials.ends(slow, decided):
            names = self._channels.codecs
            self._notes.inform_once(
                f"Step {step} of the trial of {plan_in_words(names[slow.codec], slow.cf_candidate)} took "
                f"{format_seconds(seconds)}, above its limit of {format_seconds(slow.limit_seconds)}: back to "
                f"{plan_in_words(names[slow.back_codec], slow.back_cf)}."
            )

    def _warn_if_unstable(self, plan: StepPlan) -> None:
        """Warn, once for each CF, when nothing limits the error memory under the job's compressor.

        A codec that the policy chooses is not the user's to change, and the policy measures what it costs.
        """
        self._checked.add(plan.cf)
        aggregator = self._channels.aggregators[plan.codec]
        if isinstance(aggregator, OneShot | CompressedReduceScatter):
            warning = memories.stability(self._channels.memory, aggregator.compressor, plan.cf)
            if warning is not None:
                self._notes.add("note", warning)

    def forget_gains(self) -> None:
        """Drop all measured gains. Where gains decide, the next step is dense."""
        self.tracker.averages.clear()
        self._checked.clear()
        self._measure_first = self._channels.learning_codecs()
        self.plan = self.announcement.following = next_plan(
            self.following.directive, self.tracker, self._measure_first
        )
        self.unsettled_steps = SETTLE_STEPS

    def restore(self, plan: StepPlan, following: StepPlan, step: int, back: Directive | None) -> None:
        """Continue where a checkpoint was saved."""
        self.trials.back = back
        self.plan, self.announcement.following, self.step = plan, following, step


class StepLoop:
    """Ends each step, on the training thread, after backward and before the optimizer.

    Plans are made two steps ahead: the tick of step s carries the fingerprint of the plan of step s+1 and the energies
    from which the plan of step s+2 follows. So a disagreement is known before any collective of step s+1.

    It calls the executor, and the executor never calls it: what the exchange thread needs of it is in the announcement.

    Args:
        executor: Runs the exchange.
        channels: The executor's.
        group: Group of the ticks, for the agent's other collectives.
        schedule: Plans of the steps.
        progress: Measures the progress of the training next to a dense one.
        reports: Reports windows.
        notes: What the rank says to people.
        window_steps: Steps of a window, where the directive names no other number.

    Attributes:
        window: The running window.
        totals: Sums of all steps.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        channels: Channels,
        group: dist.ProcessGroup,
        schedule: PlanSchedule,
        progress: Progress,
        reports: WindowReports,
        notes: Notes,
        window_steps: int,
    ) -> None:
        self._executor, self._channels, self._group = executor, channels, group
        self.schedule, self.progress, self.reports, self.notes = schedule, progress, reports, notes
        self._window_steps = window_steps
        self.clock, self.totals = StepClock(), RunTotals()
        # Ranks that average: fewer than all where each rank has a shard of the gradient.
        self.clipper = Clipper(channels.memory.world_size)
        self.window = WindowTotals(0, 0)

    @property
    def step(self) -> int:
        """Number of the running step."""
        return self.schedule.step

    @property
    def plan(self) -> StepPlan:
        """Plan of the running step."""
        return self.schedule.plan

    def begin_step(self) -> None:
        """Hand the plan of the next step to the executor."""
        window, plan, step = self.window, self.schedule.plan, self.schedule.step
        taken = step - window.first_step
        # Equal on all ranks, as plans are.
        ordered = plan.directive.window_steps or self._window_steps
        last, trials = window.last_plan, self.schedule.trials
        if trials.back is not None and last is not None:
            window.trial_seconds = trials.ended_with(last, plan)
        window.full = taken >= ordered or window.trial_seconds is not None
        surveyed = is_surveyed(0 if window.full else taken, ordered)
        self._executor.begin_step(plan, step, surveyed)

    def restart_step(self) -> None:
        """Begin the running step again, after a backward that did not end. Nothing of it may be in flight."""
        self._channels.rollback()
        self._channels.raw_mean.pop()
        self.begin_step()

    def end_step(self, dropped: bool = False) -> bool:
        """End the running step and begin the next one. Waits for the step's tick.

        Args:
            dropped: The parameters keep nothing of the step's gradients, so nothing of them may stay in the error
                memory. Equal on all ranks, as parameters and exchanged gradients are.

        Returns:
            True when the step counts, False when a rank had a non-finite gradient.

        Raises:
            AgreementError: The ranks do not agree on the next plan; raised on all of them.
            PeerError: A collective failed because a rank is gone.
            Exception: Anything else that a collective raised.
        """
        # Wait for the tick, and commit the step or roll it back.
        result, schedule, totals = self._waited(), self.schedule, self.totals
        plan, channels, tick, sums = schedule.plan, self._channels, result.tick, result.tick.sums
        # Parts may be finite and their mean not. All ranks hold the same mean, so they need no message about it.
        overflowed = not result.finite and not sums.nonfinite
        if overflowed:
            sums.nonfinite = self._group.size()
            sums = sums.flagged()
        counts = sums.nonfinite == 0
        if counts:
            if tick.means and not sums.failed:  # else the figures of a rank are missing in the means
                channels.aggregators[plan.codec].apply_mean_statistics(tick.means)
            self._executor.run_between_steps(channels.rollback if dropped else channels.commit)
            raw = schedule.tracker.denominator == "gradient"
            whole_sq = sums.gradient_sq if raw else sums.compensated_sq
            for cf, kept_sq in zip(plan.measured, (sums.minimum_sq, sums.candidate_sq), strict=False):
                schedule.tracker.update(cf, kept_sq, whole_sq, plan.codec)
        else:
            self._executor.run_between_steps(channels.rollback)
            self._note_dropped_residual()
            totals.nonfinite_steps += 1
            what = "the mean gradient overflowed" if overflowed else "a non-finite gradient"
            self.notes.add("nonfinite", f"Step {schedule.step}: {what} on {sums.nonfinite:.0f} rank(s).")
        averaged = channels.memory.world_size
        if channels.raw_mean.wanted:
            amplification = channels.memory.amplification
            self.clipper.end_step(sums, tick.raw_mean, result.raw, amplification)
        elif counts:
            self.clipper.residual_sq = max(0.0, sums.residual_sq) / averaged
        self.pass_on_notes()
        failing = channels.failing
        if (sums.failed or failing.bad_steps) and failing.count_step(sums.failed > 0):
            self._executor.enqueue(self._agree_on_failing)  # before any bucket of the next step, on all ranks
        if sums.failed:
            totals.failed_steps += 1
            what = f"compression failed on {sums.failed:.0f} rank(s); see their logs."
            self.notes.add("failed", f"Step {schedule.step}: {what}")
        # Add the step to the window.
        window, times = self.window, self.clock.end_step(result)
        window.add(plan, sums, times, result.dense_bytes, result.payload_bytes, not schedule.unsettled_steps)
        window.add_rate(sums)
        # Under HSDP the gradient of a rank is the mean of its node's already.
        if result.mean_sq is not None and averaged == self._group.size():
            window.add_mean(plan, sums, result.mean_sq)
        window.own.agent_cpu += result.cpu_seconds
        window.own.inside_bytes += result.inside_bytes
        window.own.inside_seconds += self.clock.inside
        if counts and result.curve is not None:
            window.add_curve(result.curve)
        if counts and not dropped and self.progress.on:
            self.progress.exchanged(plan, tick.sample, result.exchanged, window)
        totals.steps_at[plan.codec, plan.cf] += 1
        totals.dense_bytes += result.dense_bytes
        totals.payload_bytes += result.payload_bytes
        # Make the plan of the step after the next one, and begin the next.
        schedule.advance(tick, partial(self.clock.plan_seconds, times))
        self.begin_step()
        return counts

    def _waited(self) -> StepResult:
        """Wait for the step. What is lost is in the journal at once, as a backend's watchdog may end the process."""
        try:
            return self._executor.wait_step()
        except PeerError as error:
            if self._executor.defers_result:
                raise PeerError(self.notes.lose(self.step, str(error))) from error
            self.notes.add("failed", f"Step {self.step}: {error}")
            raise

    def pass_on_notes(self) -> None:
        """Put what the parts of a step have noted into log and journal. Call it between steps."""
        for sentence in self._channels.pop_notes():
            self.notes.add("note", sentence)

    def close_window(self, samples: int) -> None:
        """Begin a new window and report the full one. Every rank calls it at the start of the same step.

        Rank 0 gathers their totals on the exchange thread, before any bucket of the new step.

        Args:
            samples: Samples of the window on this rank.
        """
        for aggregator in self._channels.aggregators:
            for sentence in aggregator.notes():
                self.notes.inform(sentence)
        window, schedule = self.window, self.schedule
        self.progress.close_window(window)
        self.window = WindowTotals(window.number + 1, schedule.step, window.rate)
        self.notes.window = self.window.number
        window.own.memory_bytes = self._channels.memory.nbytes()
        window.own.samples = samples
        assert window.last_plan is not None
        gains = dict(schedule.tracker.gains(window.last_plan.codec))  # the next step changes them
        self._executor.enqueue(lambda: self.reports.gather(window, gains))

    def _agree_on_failing(self) -> None:
        """Agree on the buckets that are sent densely from now on. Runs on the exchange thread."""
        try:
            dense, without_memory = self._channels.failing.agree(Doubling(self._group))
            for channel in dense:
                self.schedule.announcement.add(f"dense {channel.bucket.names}")
                self._channels.note(
                    f"Compressing {channel.label} keeps failing: it is sent densely from now on."
                )
            for channel in without_memory:
                self.schedule.announcement.add(f"without memory {channel.bucket.names}")
                self._channels.give_up_memory(channel)
        except Exception:  # the next collective fails, too, and is raised where the training sees it
            log.exception("ranks could not agree on buckets that keep failing")

    def _note_dropped_residual(self) -> None:
        """Report a residual that overflowed and was dropped (on rank 0; each rank logs its own)."""
        dropped = self._channels.memory.dropped
        if dropped > self.totals.dropped_residuals:
            self.totals.dropped_residuals = dropped
            self.notes.add(
                "note",
                f"Step {self.step}: the residual of rank {self._group.rank()} overflowed and was dropped.",
            )

    def forget_gains(self, why: str) -> None:
        """Drop all measured gains, because the meaning of what is sent changed. Where gains decide, the next step is
        dense.

        Args:
            why: Sentence for log and journal.
        """
        self.schedule.forget_gains()
        self.totals.dropped_residuals = 0
        self.notes.add("note", why)

    def restore(
        self, plan: StepPlan, following: StepPlan, step: int, window: int, back: Directive | None
    ) -> None:
        """Continue where a checkpoint was saved. Call it before the first step."""
        self.schedule.restore(plan, following, step, back)
        self.window = WindowTotals(window, step, self.window.rate)
        self.notes.window = window
