"""The trainer's steps on one rank: buckets are exchanged, steps end, and optimizers step or skip."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gravac.memories import Bucket
from gravac_agent.errors import SetupError
from gravac_agent.exchange.hook import HookState
from gravac_agent.fsdp.attach import GradientHook
from gravac_agent.fsdp.model import DataParallel, ShardedModel
from gravac_agent.settings import AgentSettings
from gravac_agent.setup import running
from gravac_agent.setup.build import Parts
from gravac_agent.setup.running import RunningAgent
from gravac_agent.state.arrivals import Arrivals
from gravac_agent.state.rates import LearningRates, RateValues
from gravac_agent.state.regroup import Regrouper
from gravac_agent.steps.optimizers import (
    drop_gradients,
    gradients_are_zero,
    has_closure,
    have_stepped,
    is_foreign,
)
from gravac_agent.windows.meters import TrainerInput
from gravac_agent.windows.step_loop import StepLoop
from gravac_agent.windows.unexchanged import Unexchanged
from gravac_agent.windows.unused import DROPPED, PUT_BACK, UnusedGradients
from gravac_agent.windows.watch import Watch

log = logging.getLogger("gravac.agent")


class StepPhase(Enum):
    """How far a step is."""

    OPEN = auto()
    """Its gradients are not all handed over, or it could not be finished."""
    IN_FLIGHT = auto()
    """Its last gradient was handed over, and the step is not finished."""
    COUNTED = auto()
    """It is finished, and counts."""
    REFUSED = auto()
    """It is finished, and a rank had a non-finite gradient."""
    SKIPPED = auto()
    """It was refused, and the log says that optimizers skip it."""


REFUSED = (StepPhase.REFUSED, StepPhase.SKIPPED)
"""Phases of a step that is finished and does not count."""


@dataclass(slots=True)
class ExchangedStep:
    """The running step, or the last one until the next begins."""

    phase: StepPhase = StepPhase.OPEN
    layout: list[Bucket] = field(default_factory=list)
    """Buckets of the step, in order."""
    shadows: bool = False
    """Whether it has no gradient of this rank."""
    error: Exception | None = None
    """What was raised during backward, where nothing of ours may raise."""


class OptimizerSteps:
    """The steps of optimizers, which may run one inside the other.

    Args:
        optimizers: The agent's.
        followed: The one whose progress is measured.
        arrivals: What tells an optimizer which elements arrived, by the optimizer's ``id``.
        step: The step that they use.
        loop: Measures the progress.
        rates: Knows the loss scale.

    Attributes:
        running: ``id`` of the optimizers whose steps run now.
        begun: Whether any optimizer ever stepped.
        own: Whether one of the agent's stepped within the steps that run now.
        late: Whether a step ended inside that of one of the agent's, without ``finish_backward``.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        followed: torch.optim.Optimizer,
        arrivals: Mapping[int, Arrivals],
        step: ExchangedStep,
        loop: StepLoop,
        rates: LearningRates,
    ) -> None:
        self.optimizers, self._followed, self._arrivals = optimizers, followed, arrivals
        self._step, self._loop, self._rates = step, loop, rates
        self.running: set[int] = set()
        self.begun = self.own = self.late = False

    def before_own(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Run before each step of one of the agent's optimizers."""
        self.own = True
        loop, arrivals = self._loop, self._arrivals.get(id(optimizer))
        if loop.progress.on and optimizer is self._followed:
            loop.progress.before_step(self._rates.loss_scale(), loop.clipper.in_use)
        if arrivals is not None and not has_closure(args, kwargs):  # which makes the gradients
            arrivals.before_step()

    def after_own(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Run after each step of one of the agent's optimizers."""
        evaluated, self.late = self._step.phase is StepPhase.IN_FLIGHT or self.late, False
        if self._loop.progress.on and optimizer is self._followed:
            self._loop.progress.after_step(evaluated)
        arrivals = self._arrivals.get(id(optimizer))
        if arrivals is not None:
            arrivals.after_step()

    def is_foreign(self, optimizer: Any) -> bool:
        """Return whether an optimizer that steps the module's parameters is none of the agent's."""
        return optimizer not in self.optimizers and is_foreign(optimizer, self.optimizers)


class TrainerSteps:
    """Follows the trainer from one step to the next.

    All methods run on the training thread. A step, in the order in which the trainer makes it:

    - ``before_forward`` closes a full window and lets the residual follow the learning rates.
    - ``submit`` hands each bucket of backward to the executor. FSDP2 calls ``begin_backward``, ``submit_sharded`` and
      ``end_backward``.
    - ``before_step`` calls ``finish_step``, which waits for the tick and commits the step or rolls it back. Where an
      executor defers its results, it is called when the next backward begins.
    - ``OptimizerSteps`` compares the optimizer's step with a dense one.
    - ``after_step`` begins the wait for data.

    Args:
        module: The module.
        parts: The parts of the running agent.
        rates: What the residual follows.
        stepping: Steps of the optimizers.
        step: The running step.
        slot: The module's hook.
        entry: What other agents know of this one.
        settings: The agent's settings.
        watch: Notices a step that hangs; None: nothing does.
        without_state: Whether no state was loaded, which an earlier run may have had.

    Attributes:
        intake: What the trainer passes to the agent.
        regrouper: What takes a checkpoint's residual to the buckets of this run; None: nothing has to.
    """

    def __init__(
        self,
        module: DataParallel,
        parts: Parts,
        rates: LearningRates,
        stepping: OptimizerSteps,
        step: ExchangedStep,
        slot: GradientHook,
        entry: RunningAgent,
        settings: AgentSettings,
        watch: Watch | None,
        without_state: bool,
    ) -> None:
        self._module, self._parts, self._rates = module, parts, rates
        self._stepping, self.step = stepping, step
        self._slot, self._entry, self._settings, self._watch = slot, entry, settings, watch
        self.without_state = without_state
        self.intake = TrainerInput()
        self.regrouper: Regrouper | None = None
        self._unused, self._unexchanged = UnusedGradients(module), Unexchanged(module, entry.parameters)

    def begin_in_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], resumed: bool) -> None:
        """Begin in a forward whose hooks torch has listed before this agent had one, after a step without it.

        Args:
            args: Arguments of the forward.
            kwargs: Keyword arguments of the forward.
            resumed: Whether the optimizer had stepped before that step.
        """
        self.without_state &= resumed
        self.before_forward(self._module, args, kwargs)

    def before_forward(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run before each forward of the module."""
        # A GAN freezes its discriminator while the generator learns.
        if not (torch.is_grad_enabled() and any(one.requires_grad for one in self._module.parameters())):
            return
        if isinstance(self._module, DistributedDataParallel) and self._module._join_config.enable:
            _check_division(self._module)
        unexchanged = self._unexchanged
        synced = getattr(self._module, "require_backward_grad_sync", True)
        unexchanged.asked = bool(unexchanged.asked) or synced
        if not isinstance(self._slot, HookState):
            self._slot.forward_began()
        loop, deferred = self._parts.loop, self._parts.executor.defers_result
        if deferred:
            self._check()
        elif self.step.phase is StepPhase.IN_FLIGHT:
            if self.step.shadows:
                self.finish_step()
            else:
                self._finish_unused_step()
        elif self._unused.ended and not gradients_are_zero(self._module):
            self._unused.ended.clear()  # the next backward adds to them
        if loop.window.full:
            self.close_window()
        loop.clock.forward_began()
        now = self._rates.now()
        self._rates.pending = None if now == self._rates.followed else now
        # If results are deferred, the memory has not taken in the step before yet.
        if self._rates.pending is not None and not deferred:
            self._follow_rates(self._rates.pending)
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
        executor = self._parts.executor
        if bucket.number == 0:
            try:
                self._begin_step()
            except Exception as error:
                if not executor.defers_result:
                    raise
                self.step.error = error  # the result of the step before; raised before the optimizer steps
        if self.step.error is not None and executor.defers_result:
            return executor.failed(buffer)
        self.step.layout.append(bucket)
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
            self._parts.loop.restart_step()
        self._begin_step()

    def submit_sharded(self, bucket: Bucket, gradient: Tensor, out: Tensor, factor: float) -> None:
        """Hand the gradient of one FSDP module to the executor.

        Args:
            bucket: Which parameters it is made of.
            gradient: A row for each rank, shape ``(ranks * n,)``, or this rank's shard, shape ``(n,)``.
            out: Receives ``factor`` times the mean of this rank's shard, shape ``(n,)``.
            factor: See there.
        """
        self.step.layout.append(bucket)
        self._parts.executor.submit_now(bucket, gradient, out, factor)

    def end_backward(self) -> None:
        """End the exchange of a sharded step."""
        assert isinstance(self._module, ShardedModel)
        self._backward_ended()
        self._parts.executor.end_backward(self._module.gradients())

    def fail(self, error: Exception) -> None:
        """Raise ``error`` at the end of the step."""
        self.step.error, self.step.phase = error, StepPhase.IN_FLIGHT

    def _begin_step(self) -> None:
        """Begin the step of a backward, at its first bucket."""
        if self.step.phase is StepPhase.IN_FLIGHT or self._parts.executor.defers_result:
            self.finish_step()  # the optimizer did not step since the last backward, or need not know the result
        if (
            self.without_state
            and not self._parts.loop.schedule.step
            and have_stepped(self._stepping.optimizers)
        ):
            self._warn_of_lost("the optimizer has stepped before")
        # A forward closes it, but in a Join context this rank may have run out of inputs.
        if self._parts.loop.window.full:
            self.close_window()
        if self._rates.pending is not None:
            self._follow_rates(self._rates.pending)
        self.step.phase = StepPhase.OPEN
        self.step.layout.clear()

    def _backward_ended(self) -> None:
        """Note that the step's last gradient is handed over. Runs within backward."""
        joined = isinstance(self._module, DistributedDataParallel) and self._module._join_config.enable
        # In a Join context, a rank whose inputs have ended takes part in the others' exchange, and steps by nothing.
        self.step.shadows = joined and self._unexchanged.asked is None
        self._unexchanged.asked = None
        self._unexchanged.stepped = set()
        if self._unused.on:
            self._unused.backward_ended()
        self.step.phase = StepPhase.IN_FLIGHT
        if self._parts.executor.defers_result:  # the next forward may begin before the step ends
            self.intake.end_step()
        if self._watch is not None:
            self._watch.begin(self._parts.loop.schedule.step)

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Run before each step of each optimizer: finish the step if it steps a parameter of the module."""
        known = self._entry.parameters
        if not any(id(param) in known for group in optimizer.param_groups for param in group["params"]):
            return
        if self._parts.executor.defers_result:
            self._check()  # a gradient that is not finite is NaN on all ranks then; the host does not know of it
        elif self.step.phase is StepPhase.IN_FLIGHT:
            self._finish_stepped(optimizer)
        if self.step.phase in REFUSED:
            self._skip(optimizer, zeros=has_closure(args, kwargs))
        self._say_unexchanged(optimizer)
        self._stepping.own &= bool(self._stepping.running)
        self._stepping.running.add(id(optimizer))
        self._stepping.begun = True

    def finish_step(self, dropped: bool = False) -> None:
        """End the step in flight, if any: commit it or roll it back.

        Args:
            dropped: The parameters keep nothing of its gradients, so nothing of them may stay in the error memory.

        Raises:
            Exception: What a collective of the step raised.
        """
        executor = self._parts.executor
        if executor.device is not None:
            executor.device.refuse_capture()  # before the step's event is queried; the step stays in flight
        if self.step.phase is not StepPhase.IN_FLIGHT:
            return
        self.step.phase = StepPhase.OPEN
        if self.step.error is not None:
            self._check()
        self._stepping.late = any(id(one) in self._stepping.running for one in self._stepping.optimizers)
        counts = self._parts.loop.end_step(dropped)
        self.step.phase = StepPhase.COUNTED if counts else StepPhase.REFUSED
        if self._watch is not None:
            self._watch.end()
        if not executor.defers_result:
            self.intake.end_step()

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Run after each step of each optimizer."""
        if id(optimizer) not in self._stepping.running:
            return  # it steps nothing of the module
        self._stepping.running.remove(id(optimizer))
        self._parts.loop.clock.optimizer_ended()
        if self._stepping.running:
            return
        if not self._stepping.is_foreign(optimizer):
            self._unused.ended.clear()
        elif not self._stepping.own:
            given = " and ".join(type(one).__name__ for one in self._stepping.optimizers)
            self._parts.channels.note(
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
        self._parts.channels.raw_mean.wanted = True  # from the next step on
        divided = self._module.exchange_scale if isinstance(self._module, ShardedModel) else 1.0
        clipped = self._parts.loop.clipper.clip(
            self._module.parameters(),
            max_norm,
            norm_type,
            error_if_nonfinite,
            foreach,
            self._rates.loss_scale() * divided,
        )
        if clipped.reaches_memory:
            cut = partial(self._parts.memory.cut, clipped.share, clipped.rest, clipped.turn)
            self._parts.executor.run_between_steps(cut)
        self._parts.channels.cuts = self._parts.loop.clipper.cuts
        return clipped.norm

    def finish_backward(self) -> None:
        """Prepare the update of an optimizer that is in its step already. See ``Agent.finish_backward``."""
        if self._stepping.running:
            self.finish_step()
            if self.step.phase in REFUSED:
                for one in self._stepping.optimizers:
                    self._skip(one, zeros=False)
            for one in self._stepping.optimizers:
                if id(one) in self._stepping.running:
                    self._stepping.late = False
                    self._stepping.before_own(one, (), {})

    def _finish_unused_step(self) -> None:
        """End the step in flight before a forward: no optimizer that torch shows has used its gradients.

        Where they are zero by now, the trainer has dropped them, or used them by itself as the first step of SAM does.
        The parameters tell: only what moves them has used gradients. They are added up from the second time on.
        """
        unused = self._unused
        end = frozenset(self._stepping.running)  # an optimizer's closure has ends of its own
        zeroed = self._stepping.begun and gradients_are_zero(self._module)
        put_back = end in unused.put_back
        still = zeroed and not end and unused.on and not put_back and not unused.moved()
        self.finish_step(dropped=still or (zeroed and put_back))
        if not zeroed:
            unused.ended.clear()
        elif (
            self.step.phase is StepPhase.COUNTED
        ):  # a GradScaler lets a step be rolled back in every training
            if still:
                self._parts.channels.note(DROPPED)
            unused.ended.add(end)
            if not end:
                self._look_for_unused()

    def _finish_stepped(self, optimizer: Any) -> None:
        """End the step in flight before the step of an optimizer, by its gradients or by those of its closure."""
        unused, foreign = self._unused, self._stepping.is_foreign(optimizer)
        end = 0 if foreign else id(optimizer)  # a trainer may make others for each step
        if not foreign and unused.ended - {end}:
            if unused.before_step(end):
                self._parts.channels.note(PUT_BACK)
            self._look_for_unused()
        self.finish_step(dropped=end in unused.put_back)
        if self.step.phase is StepPhase.COUNTED:
            unused.ended.add(end)

    def _say_unexchanged(self, optimizer: Any) -> None:
        """Say of what the optimizer is about to step by that it was not exchanged."""
        loop, unexchanged, layout, said = self._parts.loop, self._unexchanged, self.step.layout, ""
        if unexchanged.stepped is None or id(optimizer) in unexchanged.stepped:
            said = unexchanged.before_step()
        else:
            unexchanged.stepped.add(id(optimizer))
        # A parameter may be released at any time, so it is looked for again in each window.
        if not said and layout and (loop.schedule.step == 1 or loop.window.full):
            said = unexchanged.left_out({name for bucket in layout for name in bucket.names})
        if said:
            self._parts.channels.note(said)
            loop.pass_on_notes()  # where nothing is exchanged, no step ends

    def _look_for_unused(self) -> None:
        """Keep sums of the parameters, and what undoes a step, from the next step on."""
        self._unused.on = True
        self._parts.channels.expect_drops()

    def _check(self) -> None:
        """Raise what is known to have failed, without waiting for a step in flight."""
        error, self.step.error = self.step.error, None
        if error is not None:
            raise error
        self._parts.executor.check()

    def _skip(self, optimizer: Any, zeros: bool) -> None:
        """Skip the update after a non-finite gradient, unless the trainer wants it."""
        if self._settings.nonfinite == "skip":
            if self.step.phase is StepPhase.REFUSED:
                log.warning("non-finite gradient: this optimizer step is skipped on all ranks")
            self.step.phase = StepPhase.SKIPPED
            drop_gradients(self._module, optimizer, running.parameters_of_others(self._entry), zeros)

    def _follow_rates(self, now: RateValues) -> None:
        """Scale the residual by what rates and loss scale were when the forward began."""
        self._rates.pending = None
        self._parts.executor.run_between_steps(partial(self._rates.follow, self._parts.memory, at=now))
        self._parts.loop.window.rate = max(
            (rate for rate in now[1] if rate > 0.0), default=self._parts.loop.window.rate
        )

    def close_window(self) -> None:
        """Close the running window."""
        loop = self._parts.loop
        loop.window.add_loss(self.intake.pop_loss())
        loop.close_window(self.intake.pop_samples())
        reporter = self._parts.reporter
        if self.without_state and reporter is not None and reporter.goes_on:
            self._warn_of_lost(f"job {reporter.job!r} goes on")
        self.without_state = False

    def _warn_of_lost(self, sign: str) -> None:
        self.without_state = False
        if self._parts.rank == 0:
            log.warning(
                "%s, and no state of an Agent was loaded: if this training resumes, what the run before had not sent "
                "is lost; save agent.state_dict() in each checkpoint, and call agent.load_state_dict before the first "
                "step",
                sign,
            )


def _check_division(module: DistributedDataParallel) -> None:
    """Raise SetupError in a ``Join`` context that divides gradients by the number of ranks that still have inputs."""
    if not getattr(module, "_divide_by_initial_world_size", True):
        raise SetupError(
            "divide_by_initial_world_size=False does not work with a communication hook such as the agent's: leave it "
            "out of Join(...)"
        )
