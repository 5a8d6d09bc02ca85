"""The end of a step on one rank: commit or roll back, plan the next step, close windows."""

import logging
import threading
from collections import Counter

import torch
import torch.distributed as dist

from gravac import memories
from gravac.aggregators import CompressedReduceScatter, OneShot
from gravac.protocol import Event, WindowReport
from gravac.signals.gain import GainTracker
from gravac.whatif import Recording
from gravac.wording import format_seconds, plan_in_words
from gravac_agent.errors import AgreementError, PeerError
from gravac_agent.exchange.agreement import missing_ranks
from gravac_agent.exchange.compensation import is_surveyed
from gravac_agent.exchange.encoder import Encoder
from gravac_agent.exchange.executor import Executor
from gravac_agent.exchange.plan import Directive, StepPlan, next_plan
from gravac_agent.exchange.step import StepResult
from gravac_agent.exchange.tick import Announcement, Tick
from gravac_agent.network.doubling import Doubling
from gravac_agent.reporting.reporter import Reporter
from gravac_agent.settings import AgentSettings
from gravac_agent.windows.clipping import Clipper
from gravac_agent.windows.meters import StepClock, WindowTotals, totals_of
from gravac_agent.windows.progress import Progress
from gravac_agent.windows.report import build_report
from gravac_agent.windows.trials import Trials

log = logging.getLogger("gravac.agent")


class StepLoop:
    """Ends each step, on the training thread, after backward and before the optimizer.

    Plans are made two steps ahead: the tick of step s carries the fingerprint of the plan of step s+1 and the energies
    from which the plan of step s+2 follows. So a disagreement is known before any collective of step s+1.

    It calls the executor, and the executor never calls it: what the exchange thread needs of it is in ``announcement``.

    Args:
        executor: Runs the exchange.
        announcement: What this rank announces in each tick.
        group: Group of the ticks, for the agent's other collectives.
        encoder: The executor's encoder.
        tracker: Smoothed gains, equal on all ranks.
        progress: Measures the progress of the training next to a dense one.
        reporter: Rank 0's; None on the other ranks.
        job: The job's name.
        incarnation: Which run of the job this is.
        settings: The agent's settings.
        recording: Takes in all windows; None: nobody asks for it.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        announcement: Announcement,
        group: dist.ProcessGroup,
        encoder: Encoder,
        tracker: GainTracker,
        progress: Progress,
        reporter: Reporter | None,
        job: str,
        incarnation: str,
        settings: AgentSettings,
        recording: Recording | None,
    ) -> None:
        self._executor, self.announcement = executor, announcement
        self._group, self._encoder, self.tracker = group, encoder, tracker
        self._dropped = 0
        self._settings = settings
        self._reporter, self.job, self._incarnation = reporter, job, incarnation
        self.clock, self.trials, self.progress = StepClock(), Trials(), progress
        # Ranks that average: fewer than all where each rank has a shard of the gradient.
        self._averaged = encoder.memory.world_size
        self.clipper = Clipper(self._averaged)
        self.step = 0
        self.window = self._new_window(0)
        self.window_full = False
        """Whether the window is over and waits to be closed."""
        self.plan = announcement.following
        self._checked: set[float] = set()
        self._measure_first = encoder.learning_codecs()
        self._steps_at_level = 0
        self.residual_rate = 0.0
        """Largest learning rate of those that the residual follows; 0: it follows none."""
        self.steps_at: Counter[tuple[int, float]] = Counter()
        """Steps by the CF that they sent."""
        self.dense_bytes = 0
        self.payload_bytes = 0
        self.nonfinite_steps = self.failed_steps = 0
        self._losing, self._lost = threading.Lock(), dict[int, str]()
        self.last_report: WindowReport | None = None
        """The newest window's, on rank 0. The exchange thread sets it."""
        self.recording = recording
        """What another optimizer would bring follows from it, at the end; None: it is not asked."""

    @property
    def following(self) -> StepPlan:
        """Plan of the step after the running one."""
        return self.announcement.following

    def begin_step(self) -> None:
        """Hand the plan of the next step to the executor."""
        taken = self.step - self.window.first_step
        # Equal on all ranks, as plans are.
        ordered = self.plan.directive.window_steps or self._settings.window
        last, trials = self.window.last_plan, self.trials
        if trials.back is not None and last is not None:
            self.window.trial_seconds = trials.ended_with(last, self.plan)
        self.window_full = taken >= ordered or self.window.trial_seconds is not None
        surveyed = is_surveyed(0 if self.window_full else taken, ordered)
        self._executor.begin_step(self.plan, self.step, surveyed)

    def restart_step(self) -> None:
        """Begin the running step again, after a backward that did not end. Nothing of it may be in flight."""
        self._encoder.rollback()
        self._encoder.raw_mean.pop()
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
        result = self._waited()
        plan, encoder, tick, sums = self.plan, self._encoder, result.tick, result.tick.sums
        # Parts may be finite and their mean not. All ranks hold the same mean, so they need no message about it.
        overflowed = not result.finite and not sums.nonfinite
        if overflowed:
            sums.nonfinite = self._group.size()
            sums = sums.flagged()
        counts = sums.nonfinite == 0
        if counts:
            if tick.means and not sums.failed:  # else the figures of a rank are missing in the means
                encoder.aggregators[plan.codec].apply_mean_statistics(tick.means)
            self._executor.run_between_steps(encoder.rollback if dropped else encoder.commit)
            raw = self.tracker.denominator == "gradient"
            whole_sq = sums.gradient_sq if raw else sums.compensated_sq
            for cf, kept_sq in zip(plan.measured, (sums.minimum_sq, sums.candidate_sq), strict=False):
                self.tracker.update(cf, kept_sq, whole_sq, plan.codec)
        else:
            self._executor.run_between_steps(encoder.rollback)
            self._note_dropped_residual()
            self.nonfinite_steps += 1
            what = "the mean gradient overflowed" if overflowed else "a non-finite gradient"
            self._note("nonfinite", f"Step {self.step}: {what} on {sums.nonfinite:.0f} rank(s).")
        if encoder.raw_mean.wanted:
            amplification = encoder.memory.amplification
            self.clipper.end_step(sums, tick.raw_mean, result.raw, amplification)
        elif counts:
            self.clipper.residual_sq = max(0.0, sums.residual_sq) / self._averaged
        self.pass_on_notes()
        failing = encoder.failing
        if (sums.failed or failing.bad_steps) and failing.count_step(sums.failed > 0):
            self._executor.enqueue(self._agree_on_failing)  # before any bucket of the next step, on all ranks
        if sums.failed:
            self.failed_steps += 1
            self._note(
                "failed",
                f"Step {self.step}: compression failed on {sums.failed:.0f} rank(s); see their logs.",
            )
        # Add the step to the window.
        self._steps_at_level += 1
        settled = self._steps_at_level > self._settings.settle_steps
        window, times = self.window, self.clock.end_step(result)
        window.add(plan, sums, times, result.dense_bytes, result.payload_bytes, settled)
        window.add_rate(self.residual_rate, sums)
        # Under HSDP the gradient of a rank is the mean of its node's already.
        if result.mean_sq is not None and self._averaged == self._group.size():
            window.add_mean(plan, sums, result.mean_sq)
        window.own.agent_cpu += result.cpu_seconds
        window.own.inside_bytes += result.inside_bytes
        window.own.inside_seconds += self.clock.inside
        if counts and result.curve is not None:
            window.add_curve(result.curve)
        if counts and not dropped and self.progress.on:
            self.progress.exchanged(plan, tick.sample, result.exchanged, window)
        self.steps_at[plan.codec, plan.cf] += 1
        self.dense_bytes += result.dense_bytes
        self.payload_bytes += result.payload_bytes
        # Make the plan of the step after the next one, and begin the next.
        following = self.announcement.following
        if not tick.agreed:  # on all ranks, since all hold the same sum of fingerprints
            raise AgreementError(
                f"step {self.step}: ranks disagree on the next step's plan; rank {self._group.rank()} has {following}. "
                "No gradient was exchanged under it. Ranks must run the same code and load the same checkpoint."
            )
        if following.level != plan.level:
            # A codec's first steps at a CF guess thresholds again and take longer: their times do not count.
            self._steps_at_level = 0
        self.plan = following
        if following.cf > 1.0 and following.codec == 0 and following.cf not in self._checked:
            self._warn_if_unstable(following)
        new = next_plan(self._decided(tick), self.tracker, self._measure_first, following)
        # Said in the tick of the step that begins now.
        self.announcement.slow = plan.priced and self.trials.judge(
            plan, self.step, self.clock.plan_seconds(times)
        )
        self.announcement.following = new
        if not plan.gains == following.gains == new.gains:
            self.tracker.forget_except(following.gains | new.gains)
        self.step += 1
        self.begin_step()
        return counts

    def _waited(self) -> StepResult:
        """Wait for the step. What is lost is in the journal at once, as a backend's watchdog may end the process."""
        try:
            return self._executor.wait_step()
        except PeerError as error:
            if self._executor.defers_result:
                raise PeerError(self.lose(self.step, str(error))) from error
            self._note("failed", f"Step {self.step}: {error}")
            raise

    def lose(self, step: int, why: str) -> str:
        """Note, once for a step, why it is lost and which ranks are missing. Return that. Any thread may call it."""
        with self._losing:
            if step not in self._lost:
                missing = missing_ranks(self._group, step)
                self._lost[step] = f"Step {step}: {why}" + (f". {missing}" if missing else "")
                self._note("failed", self._lost[step])
            return self._lost[step]

    def _decided(self, tick: Tick) -> Directive:
        """Return the directive that the ranks follow in the step after the next, which may end a trial."""
        decided, trials = tick.directive, self.trials
        if tick.sums.slow == self._group.size():  # then on this rank, too
            assert trials.slow is not None
            slow, step, seconds = trials.slow
            if trials.ends(slow, decided) and self._reporter is not None:
                names = self._encoder.codecs
                self._note(
                    "note",
                    f"Step {step} of the trial of {plan_in_words(names[slow.codec], slow.cf_candidate)} took "
                    f"{format_seconds(seconds)}, above its limit of {format_seconds(slow.limit_seconds)}: back to "
                    f"{plan_in_words(names[slow.back_codec], slow.back_cf)}.",
                    logging.INFO,
                )
        return decided if trials.back is None else trials.in_force(decided)

    def pass_on_notes(self) -> None:
        """Put what the parts of a step have noted into log and journal. Call it between steps."""
        for sentence in self._encoder.pop_notes():
            self._note("note", sentence)

    def close_window(self, samples: int) -> None:
        """Begin a new window and report the full one. Every rank calls it at the start of the same step.

        Rank 0 gathers their totals on the exchange thread, before any bucket of the new step.

        Args:
            samples: Samples of the window on this rank.
        """
        for aggregator in self._encoder.aggregators:
            for sentence in aggregator.notes():
                self._note("note", sentence, logging.INFO)
        self.progress.close_window(self.window)
        window, self.window = self.window, self._new_window(self.window.number + 1)
        self.window_full = False
        window.own.memory_bytes = self._encoder.memory.nbytes()
        window.own.samples = samples
        assert window.last_plan is not None
        gains = dict(self.tracker.gains(window.last_plan.codec))  # the next step changes them
        self._executor.enqueue(lambda: self._gather_and_report(window, gains))

    def _new_window(self, number: int) -> WindowTotals:
        return WindowTotals(number, self.step)

    def _gather_and_report(self, window: WindowTotals, gains: dict[float, float]) -> None:
        """Report the window on rank 0, which gathers the totals of all ranks. Runs on the exchange thread."""
        try:
            mine = window.vector()
            first = self._reporter is not None
            vectors = [torch.empty_like(mine) for _ in range(self._group.size())] if first else []
            dist.gather(mine, vectors or None, group=self._group, group_dst=0)
            if self._reporter is not None:
                assert window.last_plan is not None
                aggregator = self._encoder.aggregators[window.last_plan.codec]
                curve = window.curve_over_ranks(vectors, own=aggregator.keeps_largest)
                report = build_report(
                    window,
                    [totals_of(vector) for vector in vectors],
                    gains,
                    curve,
                    self.job,
                    self._incarnation,
                    self._settings.rank_rows,
                    (None, *self._encoder.codecs[1:]),
                )
                self._reporter.report_window(report)
                self.last_report = report
                if self.recording is not None:
                    self.recording.add(report)
        except Exception:  # a missing report must not stop the training
            log.exception("window %d could not be reported", window.number)

    def _agree_on_failing(self) -> None:
        """Agree on the buckets that are sent densely from now on. Runs on the exchange thread."""
        try:
            dense, without_memory = self._encoder.failing.agree(Doubling(self._group))
            for channel in dense:
                self.announcement.add(f"dense {channel.bucket.names}")
                self._encoder.note(
                    f"Compressing {channel.label} keeps failing: it is sent densely from now on."
                )
            for channel in without_memory:
                self.announcement.add(f"without memory {channel.bucket.names}")
                self._encoder.give_up_memory(channel)
        except Exception:  # the next collective fails, too, and is raised where the training sees it
            log.exception("ranks could not agree on buckets that keep failing")

    def _warn_if_unstable(self, plan: StepPlan) -> None:
        """Warn, once for each CF, when nothing limits the error memory under the job's compressor.

        A codec that the policy chooses is not the user's to change, and the policy measures what it costs.
        """
        self._checked.add(plan.cf)
        aggregator = self._encoder.aggregators[plan.codec]
        if isinstance(aggregator, OneShot | CompressedReduceScatter):
            warning = memories.stability(self._encoder.memory, aggregator.compressor, plan.cf)
            if warning is not None:
                self._note("note", warning)

    def inform(self, sentence: str) -> None:
        """Put a sentence that is no warning into log and journal. Call it between steps."""
        self._note("note", sentence, logging.INFO)

    def _note_dropped_residual(self) -> None:
        """Report a residual that overflowed and was dropped (on rank 0; each rank logs its own)."""
        dropped = self._encoder.memory.dropped
        if dropped > self._dropped:
            self._dropped = dropped
            self._note(
                "note",
                f"Step {self.step}: the residual of rank {self._group.rank()} overflowed and was dropped.",
            )

    def _note(self, kind: str, message: str, level: int = logging.WARNING) -> None:
        log.log(level, message)
        if self._reporter is not None:
            event = Event.model_validate({"kind": kind, "window": self.window.number, "message": message})
            self._reporter.report_event(event)
            if self.recording is not None:
                self.recording.add_event(event)

    def forget_gains(self, why: str) -> None:
        """Drop all measured gains, because the meaning of what is sent changed. Where gains decide, the next step is
        dense.

        Args:
            why: Sentence for log and journal.
        """
        self.tracker.averages.clear()
        self._checked.clear()
        self._measure_first = self._encoder.learning_codecs()
        self.plan = self.announcement.following = next_plan(
            self.following.directive, self.tracker, self._measure_first
        )
        self._steps_at_level = self._dropped = 0
        self._note("note", why)

    def restore(
        self, plan: StepPlan, following: StepPlan, step: int, window: int, back: Directive | None
    ) -> None:
        """Continue where a checkpoint was saved. Call it before the first step."""
        self.trials.back = back
        self.plan, self.announcement.following, self.step = plan, following, step
        self.window = self._new_window(window)
