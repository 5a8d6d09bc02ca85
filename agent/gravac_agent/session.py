"""A running agent on one rank: it takes DDP's buckets, and ends steps and windows between the trainer's calls."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from gravac.memories import Bucket, Memory, NoMemory, ResidualMemory
from gravac.memories.states import to_dense
from gravac.policies import ObservePolicy
from gravac.protocol import End
from gravac.signals import figures
from gravac_agent.exchange.agreement import OwnGroups, agreed_job, fail_together, leave_together, starting
from gravac_agent.exchange.hook import leftover
from gravac_agent.fsdp.attach import attach
from gravac_agent.fsdp.model import ShardedModel
from gravac_agent.fsdp.pieces import spread
from gravac_agent.fsdp.replicas import ReplicatedModel
from gravac_agent.run_log import RunLog
from gravac_agent.setup import running, usage
from gravac_agent.setup.agree import Asked, agree
from gravac_agent.setup.build import connect, start
from gravac_agent.setup.describe import decisive, innermost, trained_shapes
from gravac_agent.sinks.base import figures_of_plan, figures_of_window
from gravac_agent.state.arrivals import Arrivals
from gravac_agent.state.rates import LearningRates
from gravac_agent.steps.optimizers import around_steps
from gravac_agent.steps.trainer_steps import ExchangedStep, OptimizerSteps, TrainerSteps
from gravac_agent.streams.executor import StreamExecutor
from gravac_agent.windows.watch import Watch

log = logging.getLogger("gravac.agent")


_known: WeakSet[nn.Module] = WeakSet()
"""Modules that had an agent in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """What an agent does, after the last finished step.

    Attributes:
        job: Name of the job.
        rank: This process's rank in the module's process group.
        step: Finished steps, which is the number of the next one.
        window: Number of the running window.
        epoch: Number of the decision in force.
        phase: Phase of the decision in force, such as ``warmup``, ``explore``, ``hold`` or ``fallback``.
        codec: Codec in force: the job's compressor, or another that the policy has chosen.
        cf: Compression factor of the next step; 1 is dense.
        gain: Smoothed gain of ``codec`` at ``cf``; None where it was not measured.
        dense_bytes: Bytes that dense gradients would have taken, on this rank since the start.
        payload_bytes: Bytes handed to collectives for gradients, on this rank since the start.
        nonfinite_steps: Steps with a non-finite gradient on any rank.
        memory_bytes: Bytes that the error memory holds on this rank.
        loss: Mean loss of the last full window over all ranks. This and the next two are known on rank 0 only.
        samples_per_second: Throughput of that window, over all ranks.
        useful_samples_per_second: The same times the statistical efficiency η of its plans: samples that count as much
            as those of dense training. None where η is unknown.
    """

    job: str
    rank: int
    step: int
    window: int
    epoch: int
    phase: str
    codec: str
    cf: float
    gain: float | None
    dense_bytes: int
    payload_bytes: int
    nonfinite_steps: int
    memory_bytes: int
    loss: float | None = None
    samples_per_second: float | None = None
    useful_samples_per_second: float | None = None


class ForwardHook(partial[None]):
    """What the module calls before each forward. That of a copy of the module does nothing: a copy has no agent."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ForwardHook, (_nothing,)


def _nothing(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    pass


class Session:
    """Everything between ``Agent.start`` and ``Agent.close``. All methods run on the training thread.

    Attributes:
        module: The module.
        parts: The parts that run.
        rates: Learning rates that the residual follows.
        steps: The trainer's steps.
    """

    def __init__(self, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer], asked: Asked) -> None:
        """Agree with the other ranks, start this rank's threads, and take over the module's buckets.

        Args:
            module: See ``Agent``.
            optimizers: See ``Agent``.
            asked: What else the user asked for.

        Raises:
            SetupError: On all ranks, when one of them cannot start.
            AgreementError: On all ranks, when their settings differ.
        """
        self.module = usage.data_parallel(module, asked.replicate)
        settings, seconds = asked.settings, asked.settings.agreement_seconds
        followed = decisive(optimizers)  # its progress is measured
        self._all_left = True  # no other rank uses this agent's process groups any more
        # Each part is followed by what frees it, in this order backwards: at the end, and where the start fails.
        with ExitStack() as made:
            groups = OwnGroups()
            made.callback(lambda: groups.destroy() if self._all_left else groups.keep())
            if isinstance(self.module, ReplicatedModel):
                self.module.connect(seconds, groups)
            present = starting(self.module.process_group, asked.number)
            with fail_together(self.module.process_group, seconds, present):
                usage.check(self.module, optimizers, settings.memory, settings.collective)
                for undo in usage.adapted(optimizers) if settings.adapt_optimizer else ():
                    made.callback(undo)
                self._slot = attach(self.module)
                self._entry = running.enter(self.module, settings, asked.named)
                made.callback(running.leave, self._entry)
            job = self._entry.job = agreed_job(
                self._entry.job, settings.job is not None, self.module.process_group
            )
            pieces = self.module.pieces if isinstance(self.module, ShardedModel) else None
            self.rates = LearningRates(optimizers, asked.scaler, self._entry.parameters, pieces)
            agreed = agree(self.module, optimizers, asked, self._slot.leftover, groups, job)
            self._end = End(
                incarnation=agreed.spec.incarnation, windows=0, steps=0, message="could not start"
            )
            reporter = None
            with fail_together(agreed.tick_group):
                if agreed.tick_group.rank() == 0:
                    reporter = connect(agreed.spec, asked)
                    made.callback(lambda reporter: reporter.close(self._end), reporter)
            self.parts = start(agreed, reporter, followed, settings, self._slot)
            made.callback(self._stop)
            watch: Watch | None = None
            if isinstance(self.parts.executor, StreamExecutor):
                executor = self.parts.executor
                watch = Watch(executor.device, executor.hangs, self.parts.loop.notes.lose)
                made.callback(watch.close)
            arrivals = {
                id(one): found
                for one in optimizers
                if (found := Arrivals.of(innermost(one), self.module, self.parts.channels)) is not None
            }
            if isinstance(self.module, ReplicatedModel) and self.module.differ():
                log.warning(
                    "the replicas start with different parameters, and stay different: call torch.manual_seed with the "
                    "same seed on all nodes, or load the same checkpoint before the first step"
                )
            self.parts.loop.window.rate = max(self.rates.followed[1], default=0.0)
            step = ExchangedStep()
            stepping = OptimizerSteps(optimizers, followed, arrivals, step, self.parts.loop, self.rates)
            # The residual of an agent that this module had is its own again, and ``observe`` has none.
            without_state = module not in _known and self.parts.spec.policy.name != ObservePolicy.name
            _known.add(module)
            self.steps = TrainerSteps(
                self.module,
                self.parts,
                self.rates,
                stepping,
                step,
                self._slot,
                self._entry,
                settings,
                watch,
                without_state,
            )
            self._slot.handler = self.steps
            self._slot.take_over()
            for handle in (
                # torch.compile's wrapper does not see hooks inside: hooks go on what the trainer calls.
                module.register_forward_pre_hook(ForwardHook(self.steps.before_forward), with_kwargs=True),
                *around_steps(optimizers, self.steps.before_step, self.steps.after_step),
                # After the hooks of all optimizers, and before them.
                *(one.register_step_pre_hook(stepping.before_own) for one in optimizers),
                *(one.register_step_post_hook(stepping.after_own) for one in optimizers),
            ):
                made.callback(handle.remove)
            self._run_log = RunLog(self.parts, settings)
            self._made = made.pop_all()

    def close(self, clean: bool, failed: bool) -> None:
        """Give the module back to plain DDP and report the end.

        Args:
            clean: False: skip what needs the other ranks.
            failed: Whether an error ended the training.
        """
        parts, loop = self.parts, self.parts.loop
        self._all_left = not clean  # other ranks may have ended, or go on without this one
        try:
            if clean:
                self.steps.finish_step()
                if loop.window.own.steps:
                    self.steps.close_window()
                statistics = len(parts.channels.aggregators[loop.plan.codec].local_statistics())
                parts.executor.enqueue(lambda: self._leave(statistics))
        finally:
            message = "ended by an error in the training" if failed else "finished"
            counted = {"windows": loop.window.number, "steps": loop.step, "message": message}
            self._end = self._end.model_copy(update=counted)
            self._made.close()
            self._run_log.end(failed)

    def _leave(self, statistics: int) -> None:
        """Wait for the other ranks. Runs on the exchange thread."""
        self._all_left = leave_together(self.parts.executor.tick_codec, statistics, self.parts.tick_group)

    def _stop(self) -> None:
        """End this rank's threads, and give the module back with the residual."""
        executor = self.parts.executor
        ended = executor.close()
        self._all_left = ended and self._all_left
        # Where it still waits for another rank, reading the memory of a device would wait, too.
        self._slot.release(executor.detached(self._leftover()) if ended else NoMemory())
        self.parts.channels.close()

    def _leftover(self) -> Memory:
        """Return the residual that plain DDP or FSDP2 sends with the next gradients."""
        memory, host = leftover(self.parts.memory), self.parts.host
        if host is None:
            return memory
        whole = ResidualMemory()
        shard, shapes = (host.number, host.ranks), trained_shapes(self.module)
        whole.load_state_dict(spread(to_dense(memory.state_dict()), shard, shapes))
        return whole

    def state(self) -> AgentState:
        """Return a snapshot; cheap enough for every step."""
        parts, loop, plan = self.parts, self.parts.loop, self.parts.loop.plan
        report = loop.reports.last
        useful = None
        if report is not None:
            kind, compressor = parts.spec.optimizer_kind, parts.channels.compressor
            useful = figures.useful_samples_per_second(report, kind, compressor, parts.spec.senders)
        return AgentState(
            job=loop.reports.job if parts.reporter is None else parts.reporter.job,
            rank=parts.rank,
            step=loop.step,
            window=loop.window.number,
            epoch=plan.directive.epoch,
            phase=plan.directive.phase,
            codec=parts.channels.codecs[plan.codec],
            cf=plan.cf,
            gain=loop.schedule.tracker.gain(plan.cf, plan.codec),
            dense_bytes=loop.totals.dense_bytes,
            payload_bytes=loop.totals.payload_bytes,
            nonfinite_steps=loop.totals.nonfinite_steps,
            memory_bytes=parts.memory.nbytes(),
            loss=None if report is None else report.loss,
            samples_per_second=None if report is None else figures.samples_per_second(report),
            useful_samples_per_second=useful,
        )

    def figures(self) -> dict[str, float]:
        """Return figures for a logger. See ``Agent.figures``."""
        plan, report = self.parts.loop.plan, self.parts.loop.reports.last
        if report is not None:
            return figures_of_window(report, self.parts.spec)
        return figures_of_plan(plan.directive.epoch, self.parts.channels.codecs[plan.codec], plan.cf)

    @property
    def layout(self) -> list[Bucket]:
        """Buckets of the running step, in order."""
        return self.steps.step.layout

    def log(self, loss: float | Tensor | None, samples: int | None) -> None:
        """Note figures of the step just done; see ``Agent.log``."""
        if samples is not None:
            self.steps.intake.samples_per_step = samples
        if loss is not None:
            self.parts.loop.window.add_loss(self.steps.intake.log_loss(loss))
