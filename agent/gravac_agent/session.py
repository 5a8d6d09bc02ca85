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
from torch.nn.parallel import DistributedDataParallel

from gravac.memories import Bucket, Memory, NoMemory, ResidualMemory
from gravac.memories.states import to_dense
from gravac.policies import ObservePolicy
from gravac.protocol import End
from gravac.signals import figures
from gravac_agent.exchange.agreement import OwnGroups, agreed_job, fail_together, part, starting
from gravac_agent.exchange.hook import HookState, leftover
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
from gravac_agent.state.rates import LearningRates, RateValues
from gravac_agent.state.regroup import Regrouper
from gravac_agent.streams.executor import StreamExecutor
from gravac_agent.windows.meters import TrainerInput
from gravac_agent.windows.unexchanged import Unexchanged
from gravac_agent.windows.unused import DROPPED, PUT_BACK, UnusedGradients
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
    """Everything between ``Agent.start`` and ``Agent.close``.

    All methods run on the training thread. A step, in the order in which the trainer makes it:

    - ``_before_forward`` closes a full window and lets the residual follow the learning rates.
    - ``submit`` hands each bucket of backward to the executor. FSDP2 calls ``begin_backward``, ``submit_sharded`` and
      ``end_backward``.
    - ``_before_step`` calls ``finish_step``, which waits for the tick and commits the step or rolls it back. Where an
      executor defers its results, it is called when the next backward begins.
    - ``_before_own_step`` and ``_after_own_step`` compare the optimizer's step with a dense one.
    - ``_after_step`` begins the wait for data.
    """

    def __init__(self, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer], asked: Asked) -> None:
        """Agree with the other ranks, start this rank's threads, and take over the module's buckets.

        Args:
            module: As in ``Agent``.
            optimizers: As in ``Agent``.
            asked: What else the user asked for.

        Raises:
            SetupError: On all ranks, when one of them cannot start.
            AgreementError: On all ranks, when their settings differ.
        """
        self.module = usage.data_parallel(module, asked.replicate)
        self.optimizers, self._settings = optimizers, asked.settings
        self._followed = decisive(optimizers)  # its progress is measured
        settings, seconds = asked.settings, asked.settings.agreement_seconds
        self.intake = TrainerInput()
        self.layout: list[Bucket] = []
        """Buckets of the running step, in order."""
        self.regrouper: Regrouper | None = None
        self._in_flight = False  # the step's last bucket was submitted, and the step is not finished
        self._nonfinite = False  # the last finished step had a non-finite gradient
        self._skipped = False  # that was said
        self._stepping: set[int] = set()  # ``id`` of the optimizers whose steps run now, one inside the other
        # Whether any optimizer ever stepped, and the own one within these steps.
        self._stepped = self._own_stepped = False
        self._unused = UnusedGradients(self.module)
        self._exchanges = 0
        # How many there were at an optimizer's last step, by its ``id``.
        self._exchanges_at: dict[int, int] = {}
        # Whether a forward since the last exchange asked for one, outside of no_sync(); None: there was no forward.
        self._asked: bool | None = None
        self._shadows = False  # the step in flight has no gradient of this rank
        self._left_out = False  # parameters are not exchanged, and that was said
        self._error: Exception | None = None  # raised during backward, where nothing of ours may raise
        self._rates_now: RateValues | None = None  # what the residual does not follow yet
        self._late = False  # a step ended inside the optimizer's, without ``finish_backward``
        self._parted = True  # no other rank uses this agent's process groups any more
        # Each part is followed by what frees it, in this order backwards: at the end, and where the start fails.
        with ExitStack() as made:
            groups = OwnGroups()
            made.callback(lambda: groups.destroy() if self._parted else groups.keep())
            if isinstance(self.module, ReplicatedModel):
                self.module.connect(seconds, groups)
            present = starting(self.module.process_group, asked.number)
            with fail_together(self.module.process_group, seconds, present):
                usage.check(self.module, optimizers, settings.memory, settings.collective)
                for undo in usage.adapted(optimizers) if settings.adapt_optimizer else ():
                    made.callback(undo)
                self._slot = attach(self.module)
                self._entry = running.enter(self.module, settings, asked.named)
                self._unexchanged = Unexchanged(self.module, self._entry.parameters)
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
            self.parts = start(agreed, reporter, self._followed, settings, self._slot)
            made.callback(self._stop)
            self._watch: Watch | None = None
            if isinstance(self.parts.executor, StreamExecutor):
                executor = self.parts.executor
                self._watch = Watch(executor.device, executor.hangs, self.parts.loop.notes.lose)
                made.callback(self._watch.close)
            self._arrivals = {
                id(one): arrivals
                for one in optimizers
                if (arrivals := Arrivals.of(innermost(one), self.module, self.parts.encoder)) is not None
            }
            if isinstance(self.module, ReplicatedModel) and self.module.differ():
                log.warning(
                    "the replicas start with different parameters, and stay different: call torch.manual_seed with the "
                    "same seed on all nodes, or load the same checkpoint before the first step"
                )
            if settings.rescale:
                self.parts.loop.window.rate = max(self.rates.followed[1], default=0.0)
            self._slot.handler = self
            self._slot.take_over()
            for handle in (
                # torch.compile's wrapper does not see hooks inside: hooks go on what the trainer calls.
                module.register_forward_pre_hook(ForwardHook(self._before_forward), with_kwargs=True),
                *usage.around_steps(optimizers, self._before_step, self._after_step),
                # After the hooks of all optimizers, and before them.
                *(one.register_step_pre_hook(self._before_own_step) for one in optimizers),
                *(one.register_step_post_hook(self._after_own_step) for one in optimizers),
            ):
                made.callback(handle.remove)
            # The residual of an agent that this module had is its own again, and ``observe`` has none.
            self.without_state = module not in _known and self.parts.spec.policy.name != ObservePolicy.name
            """No state was loaded, which an earlier run may have had."""
            _known.add(module)
            self._run_log = RunLog(self.parts, settings)
            self._made = made.pop_all()

    def close(self, clean: bool, failed: bool) -> None:
        """Give the module back to plain DDP and report the end.

        Args:
            clean: False: skip what needs the other ranks.
            failed: Whether an error ended the training.
        """
        parts, loop = self.parts, self.parts.loop
        self._parted = not clean  # other ranks may have ended, or go on without this one
        try:
            if clean:
                self.finish_step()
                if loop.window.own.steps:
                    self._close_window()
                statistics = len(parts.encoder.aggregators[loop.plan.codec].local_statistics())
                parts.executor.enqueue(lambda: self._part(statistics))
        finally:
            message = "ended by an error in the training" if failed else "finished"
            counted = {"windows": loop.window.number, "steps": loop.step, "message": message}
            self._end = self._end.model_copy(update=counted)
            self._made.close()
            self._run_log.end(failed)

    def _part(self, statistics: int) -> None:
        """Wait for the other ranks. Runs on the exchange thread."""
        self._parted = part(self.parts.executor.tick_codec, statistics, self.parts.tick_group)

    def _stop(self) -> None:
        """End this rank's threads, and give the module back with the residual."""
        executor = self.parts.executor
        ended = executor.close()
        self._parted = ended and self._parted
        # Where it still waits for another rank, reading the memory of a device would wait, too.
        self._slot.release(executor.detached(self._leftover()) if ended else NoMemory())
        self.parts.encoder.close()

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
            kind, compressor = parts.spec.optimizer_kind, parts.encoder.compressor
            useful = figures.useful_samples_per_second(report, kind, compressor, parts.spec.senders)
        return AgentState(
            job=loop.reports.job if parts.reporter is None else parts.reporter.job,
            rank=parts.rank,
            step=loop.step,
            window=loop.window.number,
            epoch=plan.directive.epoch,
            phase=plan.directive.phase,
            codec=parts.encoder.codecs[plan.codec],
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
        return figures_of_plan(plan.directive.epoch, self.parts.encoder.codecs[plan.codec], plan.cf)

    def log(self, loss: float | Tensor | None, samples: int | None) -> None:
        """Note figures of the step just done; see ``Agent.log``."""
        if samples is not None:
            self.intake.samples_per_step = samples
        if loss is not None:
            self.parts.loop.window.add_loss(self.intake.log_loss(loss))

    # -- a step, from forward to the optimizer ----------------------------------------------------------------

    def begin_in_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], resumed: bool) -> None:
        """Begin in a forward whose hooks torch has listed before this agent had one, after a step without it.

        Args:
            args: Of the forward.
            kwargs: Of the forward.
            resumed: Whether the optimizer had stepped before that step.
        """
        self.without_state &= resumed
        self._before_forward(self.module, args, kwargs)

    def _before_forward(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A GAN freezes its discriminator while the generator learns.
        if not (torch.is_grad_enabled() and any(one.requires_grad for one in self.module.parameters())):
            return
        if isinstance(self.module, DistributedDataParallel) and self.module._join_config.enable:
            usage.check_division(self.module)
        self._asked = bool(self._asked) or getattr(self.module, "require_backward_grad_sync", True)
        if not isinstance(self._slot, HookState):
            self._slot.forward_began()
        loop, deferred = self.parts.loop, self.parts.executor.defers_result
        if deferred:
            self._check()
        elif self._in_flight and self._shadows:
            self.finish_step()
        elif self._in_flight:
            self._finish_unused_step()
        elif self._unused.ended and not usage.gradients_are_zero(self.module):
            self._unused.ended.clear()  # the next backward adds to them
        if loop.window.full:
            self._close_window()
        loop.clock.forward_began()
        if self._settings.rescale:
            now = self.rates.now()
            self._rates_now = None if now == self.rates.followed else now
            # If results are deferred, the memory has not taken in the step before yet.
            if self._rates_now is not None and not deferred:
                self._follow_rates(self._rates_now)
        self.intake.forward(args, kwargs)

    def submit(self, bucket: Bucket, buffer: Tensor, last: bool) -> torch.futures.Future[Tensor]:
        """Hand one bucket of the running backward to the executor.

        Args:
            bucket: Which parameters the buffer is made of.
            buffer: DDP's flat gradient, shape ``(n,)``; it holds the mean when the future is done.
            last: Whether it is the last bucket of the step.

        Returns:
            A future of ``buffer``.
        """
        executor = self.parts.executor
        if bucket.number == 0:
            try:
                self._begin_step()
            except Exception as error:
                if not executor.defers_result:
                    raise
                self._error = error  # the result of the step before; raised before the optimizer steps
        if self._error is not None and executor.defers_result:
            return executor.failed(buffer)
        self.layout.append(bucket)
        if last:
            self._backward_ended()
        regrouper = self.regrouper
        if regrouper is None:
            return executor.submit(bucket, buffer, last)
        if last:
            self.regrouper = None
        return regrouper.submit(bucket, buffer, last, executor.submit)

    def begin_backward(self, abandoned: bool) -> None:
        """Begin the exchange of a sharded step. ``abandoned``: drop what an unfinished backward exchanged."""
        if abandoned:
            self.parts.loop.restart_step()
        self._begin_step()

    def submit_sharded(self, bucket: Bucket, gradient: Tensor, out: Tensor, factor: float) -> None:
        """Hand the gradient of one FSDP module to the executor.

        Args:
            bucket: Which parameters it is made of.
            gradient: A row for each rank, shape ``(ranks * n,)``, or this rank's shard, shape ``(n,)``.
            out: Receives ``factor`` times the mean of this rank's shard, shape ``(n,)``.
            factor: See there.
        """
        self.layout.append(bucket)
        self.parts.executor.submit_now(bucket, gradient, out, factor)

    def end_backward(self) -> None:
        """End the exchange of a sharded step."""
        assert isinstance(self.module, ShardedModel)
        self._backward_ended()
        self.parts.executor.end_backward(self.module.gradients())

    def fail(self, error: Exception) -> None:
        """Raise ``error`` at the end of the step."""
        self._error, self._in_flight = error, True

    def _begin_step(self) -> None:
        """Begin the step of a backward, at its first bucket."""
        if self._in_flight or self.parts.executor.defers_result:
            self.finish_step()  # the optimizer did not step since the last backward, or need not know the result
        if self.without_state and not self.parts.loop.step and usage.have_stepped(self.optimizers):
            self._warn_of_lost("the optimizer has stepped before")
        # A forward closes it, but in a Join context this rank may have run out of inputs.
        if self.parts.loop.window.full:
            self._close_window()
        if self._rates_now is not None:
            self._follow_rates(self._rates_now)
        self._nonfinite = False
        self.layout.clear()

    def _backward_ended(self) -> None:
        """Note that the step's last gradient is handed over. Runs within backward."""
        joined = isinstance(self.module, DistributedDataParallel) and self.module._join_config.enable
        # In a Join context, a rank whose inputs have ended takes part in the others' exchange, and steps by nothing.
        self._shadows = joined and self._asked is None
        self._asked = None
        self._exchanges += 1
        if self._unused.on:
            self._unused.backward_ended()
        self._in_flight = True
        if self.parts.executor.defers_result:  # the next forward may begin before the step ends
            self.intake.end_step()
        if self._watch is not None:
            self._watch.begin(self.parts.loop.step)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Before each step of each optimizer: finish the step if it steps a parameter of the module."""
        known = self._entry.parameters
        if not any(id(param) in known for group in optimizer.param_groups for param in group["params"]):
            return
        if self.parts.executor.defers_result:
            self._check()  # a gradient that is not finite is NaN on all ranks then; the host does not know of it
        elif self._in_flight:
            self._finish_stepped(optimizer)
        if self._nonfinite:
            self._skip(optimizer, zeros=usage.has_closure(args, kwargs))
        self._say_unexchanged(optimizer)
        self._own_stepped &= bool(self._stepping)
        self._stepping.add(id(optimizer))
        self._stepped = True

    def finish_step(self, dropped: bool = False) -> None:
        """End the step in flight, if any: commit it or roll it back.

        Args:
            dropped: The parameters keep nothing of its gradients, so nothing of them may stay in the error memory.

        Raises:
            Exception: What a collective of the step raised.
        """
        executor = self.parts.executor
        if executor.device is not None:
            executor.device.refuse_capture()  # before the step's event is queried; the step stays in flight
        if not self._in_flight:
            return
        self._in_flight = False
        if self._error is not None:
            self._check()
        self._late = any(id(one) in self._stepping for one in self.optimizers)
        self._nonfinite, self._skipped = not self.parts.loop.end_step(dropped), False
        if self._watch is not None:
            self._watch.end()
        if not executor.defers_result:
            self.intake.end_step()

    def _before_own_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._own_stepped = True
        loop, arrivals = self.parts.loop, self._arrivals.get(id(optimizer))
        if loop.progress.on and optimizer is self._followed:
            loop.progress.before_step(self.rates.loss_scale(), loop.clipper.in_use)
        if arrivals is not None and not usage.has_closure(args, kwargs):  # which makes the gradients
            arrivals.before_step()

    def _after_own_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        evaluated, self._late = self._in_flight or self._late, False
        if self.parts.loop.progress.on and optimizer is self._followed:
            self.parts.loop.progress.after_step(evaluated)
        arrivals = self._arrivals.get(id(optimizer))
        if arrivals is not None:
            arrivals.after_step()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in self._stepping:
            return  # it steps nothing of the module
        self._stepping.remove(id(optimizer))
        self.parts.loop.clock.optimizer_ended()
        if self._stepping:
            return
        if not self._is_foreign(optimizer):
            self._unused.ended.clear()
        elif not self._own_stepped:
            given = " and ".join(type(one).__name__ for one in self.optimizers)
            self.parts.encoder.note(
                f"Another optimizer steps the module's parameters: {type(optimizer).__name__}, and not the {given} "
                "that the Agent was given, whose learning rates the residual follows. For good, close the Agent and "
                "make one with the new optimizer."
            )

    # -- what not every step has --------------------------------------------------------------------------------

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float, error_if_nonfinite: bool, foreach: bool | None
    ) -> Tensor:
        """Clip the gradients of the step in flight, which ends here. See ``Agent.clip_grad_norm_``."""
        self.finish_step()
        self.parts.encoder.raw_mean.wanted = True  # from the next step on
        divided = self.module.exchange_scale if isinstance(self.module, ShardedModel) else 1.0
        clipped = self.parts.loop.clipper.clip(
            self.module.parameters(),
            max_norm,
            norm_type,
            error_if_nonfinite,
            foreach,
            self.rates.loss_scale() * divided,
        )
        if clipped.reaches_memory:
            cut = partial(self.parts.memory.cut, clipped.share, clipped.rest, clipped.turn)
            self.parts.executor.run_between_steps(cut)
        self.parts.encoder.cuts = self.parts.loop.clipper.cuts
        return clipped.norm

    def finish_backward(self) -> None:
        """Prepare the update of an optimizer that is in its step already. See ``Agent.finish_backward``."""
        if self._stepping:
            self.finish_step()
            if self._nonfinite:
                for one in self.optimizers:
                    self._skip(one, zeros=False)
            for one in self.optimizers:
                if id(one) in self._stepping:
                    self._late = False
                    self._before_own_step(one, (), {})

    def _finish_unused_step(self) -> None:
        """End the step in flight before a forward: no optimizer that torch shows has used its gradients.

        Where they are zero by now, the trainer has dropped them, or used them by itself as the first step of SAM does.
        The parameters tell: only what moves them has used gradients. They are added up from the second time on.
        """
        unused, end = self._unused, frozenset(self._stepping)  # an optimizer's closure has ends of its own
        zeroed = self._stepped and usage.gradients_are_zero(self.module)
        put_back = end in unused.put_back
        still = zeroed and not end and unused.on and not put_back and not unused.moved()
        self.finish_step(dropped=still or (zeroed and put_back))
        if not zeroed:
            unused.ended.clear()
        elif not self._nonfinite:  # else it was rolled back, as a GradScaler does in every training
            if still:
                self.parts.encoder.note(DROPPED)
            unused.ended.add(end)
            if not end:
                self._look_for_unused()

    def _finish_stepped(self, optimizer: Any) -> None:
        """End the step in flight before the step of an optimizer, by its gradients or by those of its closure."""
        unused, foreign = self._unused, self._is_foreign(optimizer)
        end = 0 if foreign else id(optimizer)  # a trainer may make others for each step
        if not foreign and unused.ended - {end}:
            if unused.before_step(end):
                self.parts.encoder.note(PUT_BACK)
            self._look_for_unused()
        self.finish_step(dropped=end in unused.put_back)
        if not self._nonfinite:
            unused.ended.add(end)

    def _is_foreign(self, optimizer: Any) -> bool:
        """Return whether an optimizer that steps the module's parameters is none of the agent's."""
        return optimizer not in self.optimizers and usage.is_foreign(optimizer, self.optimizers)

    def _say_unexchanged(self, optimizer: Any) -> None:
        """Say of what the optimizer is about to step by that it was not exchanged."""
        loop, said = self.parts.loop, ""
        before = self._exchanges_at.get(id(optimizer), 0)
        self._exchanges_at[id(optimizer)] = self._exchanges
        if before == self._exchanges:
            said = self._unexchanged.before_step(self._asked)
        # A parameter may be released at any time, so it is looked for again in each window.
        if not said and self.layout and not self._left_out and (loop.step == 1 or loop.window.full):
            said = self._unexchanged.left_out({name for bucket in self.layout for name in bucket.names})
            self._left_out = bool(said)
        if said:
            self.parts.encoder.note(said)
            loop.pass_on_notes()  # where nothing is exchanged, no step ends

    def _look_for_unused(self) -> None:
        """Keep sums of the parameters, and what undoes a step, from the next step on."""
        self._unused.on = True
        self.parts.encoder.expect_drops()

    def _check(self) -> None:
        """Raise what is known to have failed, without waiting for a step in flight."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        self.parts.executor.check()

    def _skip(self, optimizer: Any, zeros: bool) -> None:
        """Skip the update after a non-finite gradient, unless the trainer wants it."""
        if self._settings.nonfinite == "skip":
            if not self._skipped:
                log.warning("non-finite gradient: this optimizer step is skipped on all ranks")
            self._skipped = True
            usage.drop_gradients(self.module, optimizer, running.parameters_of_others(self._entry), zeros)

    def _follow_rates(self, now: RateValues) -> None:
        """Scale the residual by what rates and loss scale were when the forward began."""
        self._rates_now = None
        self.parts.executor.run_between_steps(partial(self.rates.follow, self.parts.memory, at=now))
        self.parts.loop.window.rate = max(
            (rate for rate in now[1] if rate > 0.0), default=self.parts.loop.window.rate
        )

    def _close_window(self) -> None:
        loop = self.parts.loop
        loop.window.add_loss(self.intake.pop_loss())
        loop.close_window(self.intake.pop_samples())
        reporter = self.parts.reporter
        if self.without_state and reporter is not None and reporter.goes_on:
            self._warn_of_lost(f"job {reporter.job!r} goes on")
        self.without_state = False

    def _warn_of_lost(self, sign: str) -> None:
        self.without_state = False
        if self.parts.rank == 0:
            log.warning(
                "%s, and no state of an Agent was loaded: if this training resumes, what the run before had not sent "
                "is lost; save agent.state_dict() in each checkpoint, and call agent.load_state_dict before the first "
                "step",
                sign,
            )
