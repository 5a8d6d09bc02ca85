"""The one thing a trainer uses: a context manager around a DDP module."""

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from gravac.memories import Bucket
from gravac.policies.base import Policy
from gravac.protocol import End
from gravac_agent.errors import ClosedError, SetupError
from gravac_agent.exchange.agreement import fail_together
from gravac_agent.exchange.hook import attach, leftover
from gravac_agent.network.link import Link
from gravac_agent.run_log import Story
from gravac_agent.settings import AgentSettings, load
from gravac_agent.setup import usage
from gravac_agent.setup.build import Parts, assemble
from gravac_agent.state import checkpoint
from gravac_agent.state.rates import Rates, Scaler
from gravac_agent.state.regroup import Regrouper
from gravac_agent.state.switch import switch
from gravac_agent.status import AgentState, state_of
from gravac_agent.windows.meters import TrainerInput

log = logging.getLogger("gravac.agent")


class Agent:
    """Compress the gradients of ``module`` as far as pays, decided per window and the same on all ranks.

    ``with Agent(ddp_model, optimizer) as agent:`` around the training loop is all a trainer needs; every rank runs it.
    ``optimizer`` is the one that steps ``module``'s parameters. ``policy``: a name, ``"name:setting=value"`` or an
    instance (one that is not registered needs ``controller=None``). ``controller``: ``"auto"`` (rank 0 starts one, it
    ends with the agent), an ``http://`` address, or None to decide in process. ``enabled=False`` is plain DDP.
    ``scaler``: the GradScaler in use, if any, so that what is owed follows its scale. Other
    settings and all ``GRAVAC_…`` variables: ``gravac_agent.settings.AgentSettings``.

    Raises SetupError for wrong use and AgreementError when ranks were started with different settings.
    """

    _open: ClassVar["Agent | None"] = None

    def __init__(
        self,
        module: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        *,
        compressor: str | None = None,
        memory: str | None = None,
        policy: str | Policy | None = None,
        window: int | None = None,
        controller: str | None = "",
        enabled: bool | None = None,
        job: str | None = None,
        data_dir: str | Path | None = None,
        link: str | Link | None = None,
        seed: int | None = None,
        scaler: Scaler | None = None,
        **more: Any,
    ) -> None:
        self._policy = policy if policy is not None and not isinstance(policy, str) else None
        self._link = link if isinstance(link, Link) else None
        self.settings: AgentSettings = load(
            compressor=compressor,
            memory=memory,
            policy=policy if isinstance(policy, str) else None,
            window=window,
            controller="none" if controller is None else controller or None,
            enabled=enabled,
            job=job,
            data_dir=None if data_dir is None else Path(data_dir),
            link=link if isinstance(link, str) else None,
            seed=seed,
            **more,
        )
        usage.check_arguments(optimizer, scaler)
        self._called = module  # torch.compile's wrapper, if there is one: it does not see hooks inside
        self._module, self._optimizer = usage.ddp_of(module), optimizer
        if self.settings.enabled:
            usage.check_devices(self._module)
        if not dist.is_initialized():
            raise SetupError("no process group: call torch.distributed.init_process_group first")
        self._parts: Parts | None = None
        self._closed = False
        self._handles: list[RemovableHandle] = []
        self._in_flight = threading.Event()  # set: a step was handed over and not finished yet
        self._layout: list[Bucket] = []  # buckets of the running step, in order
        self._regrouper: Regrouper | None = None
        self._unapplicable = False  # the last finished step had a non-finite gradient
        self._intake = TrainerInput()
        names = {id(parameter): name for name, parameter in self._module.module.named_parameters()}
        self._rates = Rates(optimizer, scaler, names)
        if self.settings.enabled:
            self._handles = [usage.warn_of_steps_outside(optimizer)]

    def __enter__(self) -> Self:
        if self._closed:
            raise ClosedError("this Agent was closed; make a new one")
        if not self.settings.enabled:
            return self
        with fail_together(self._module.process_group, self.settings.agreement_seconds):
            if Agent._open is not None:
                raise SetupError("another Agent is open in this process; one `with Agent(...)` at a time")
            usage.check(self._module, self._optimizer, self.settings.memory)
            self._slot = attach(self._module)
        self._parts = assemble(self._module, self.settings, self._slot, self._policy, self._link)
        self._drop_handles()
        Agent._open = self
        self._slot.handler = self
        self._handles = [
            self._called.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            usage.before_steps(self._module, self._optimizer, self._before_optimizer),
            self._optimizer.register_step_post_hook(self._after_optimizer),
        ]
        self._story = Story(self._parts, self.settings)
        return self

    def _drop_handles(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(clean=kind is None)

    def close(self, *, clean: bool = True) -> None:
        """End the agent: the last window is reported, the hook becomes a plain all-reduce, what is owed goes out with
        the next backward. ``clean=False`` (an exception is on its way) skips what needs the other ranks. Safe to
        repeat."""
        if self._closed:
            return
        self._closed = True
        parts, self._parts = self._parts, None
        if parts is None:
            self._drop_handles()
            return
        try:
            if clean:
                self._finish(parts)
                if parts.loop.window.own.steps:
                    self._close_window(parts)
        finally:
            self._drop_handles()
            parts.engine.close()
            self._slot.handler, self._slot.leftover = None, leftover(parts.memory)
            Agent._open = None
            if parts.reporter is not None:
                message = "finished" if clean else "ended by an error in the training"
                windows, steps = parts.loop.window.number, parts.loop.step
                parts.reporter.close(
                    End(incarnation=parts.incarnation, windows=windows, steps=steps, message=message)
                )
            self._story.end(clean)

    def log(self, *, loss: float | Tensor | None = None, samples: int | None = None) -> None:
        """Tell the agent the loss of the step just done (drawn beside the CF), and how many samples a step of this rank
        has (otherwise the first dimension of the first tensor given to ``forward``). Call it after the optimiser step.
        A loss on a GPU is read one step later, so nothing waits for it.
        """
        if self._closed:
            raise ClosedError("this Agent is closed: log inside its `with` block")
        if self.settings.enabled:
            self._need_parts()
        if samples is not None:
            self._intake.samples_per_step = samples
        if loss is not None and self._parts is not None:
            self._parts.loop.window.add_loss(self._intake.log_loss(loss))

    @property
    def state(self) -> AgentState | None:
        """What it is doing now; None when not enabled."""
        return None if self._parts is None else state_of(self._parts)

    @property
    def url(self) -> str | None:
        """Address of the live page (rank 0, once the controller is up)."""
        return (
            self._parts.reporter.url if self._parts is not None and self._parts.reporter is not None else None
        )

    @property
    def trace_path(self) -> Path | None:
        """The job's journal (rank 0, when it is on this machine)."""
        return (
            self._parts.reporter.trace_path
            if self._parts is not None and self._parts.reporter is not None
            else None
        )

    def wait_ready(self, seconds: float = 30.0) -> bool:
        """Wait for the controller, on rank 0; True at once elsewhere. Training never needs it: it starts dense."""
        reporter = self._parts.reporter if self._parts is not None else None
        return reporter is None or reporter.wait_ready(seconds)

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals, plan and gain averages, plain tensors and numbers; save one a rank, between steps."""
        parts = self._need_parts()
        self._finish(parts)
        return checkpoint.save(parts, self._layout, self._module, self._rates)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on where ``state_dict`` was taken. Give this rank's state, or, after a change of the number of ranks, the
        list of all ranks' states. Every rank calls it, before the first step. Raises SetupError, on all ranks, when it
        does not fit on one."""
        parts = self._need_parts()
        if parts.loop.step:
            raise SetupError("load_state_dict comes before the first step")
        self._regrouper = checkpoint.load_everywhere(state, parts, self._module, self._rates)

    def switch(
        self, *, compressor: str | None = None, memory: str | None = None, collective: str | None = None
    ) -> None:
        """Go on with another codec, error memory or collective; what is owed is kept. Every rank calls it, between
        steps, with the same arguments. Raises SetupError, with nothing changed, for what cannot be."""
        parts = self._need_parts()
        self._finish(parts)
        if memory is not None:
            usage.check_memory(memory, self._module, self._optimizer)
        switch(parts, compressor, memory, collective)

    def submit(self, bucket: Bucket, buffer: Tensor, last: bool) -> torch.futures.Future[Tensor]:
        """One bucket from DDP's hook."""
        parts = self._parts
        assert parts is not None
        if bucket.number == 0:
            self._finish(parts)  # only if the optimiser did not step since the last backward
            if parts.loop.window_full:
                self._close_window(
                    parts
                )  # nor was there a forward: this rank shadows the others in a Join context
            self._unapplicable = False
            self._layout = []
        self._layout.append(bucket)
        if last:
            self._in_flight.set()
        if self._regrouper is None:
            return parts.engine.submit(bucket, buffer, last)
        future = self._regrouper.take(bucket, buffer, last, parts.engine.submit)
        if last:
            self._regrouper = None
        return future

    def _need_parts(self) -> Parts:
        if self._closed:
            raise ClosedError("this Agent is closed")
        if self._parts is None:
            raise SetupError("this Agent is not running: use it inside `with`, and with enabled=True")
        return self._parts

    def _finish(self, parts: Parts) -> None:
        """End the step in flight, if any."""
        if not self._in_flight.is_set():
            return
        self._in_flight.clear()
        self._unapplicable = not parts.loop.end_step()
        self._intake.end_step()

    def _close_window(self, parts: Parts) -> None:
        parts.loop.window.add_loss(self._intake.pop_loss())
        parts.loop.close_window(self._intake.pop_samples())

    def _before_forward(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parts = self._parts
        if parts is None or not torch.is_grad_enabled():
            return
        usage.check_division(self._module)
        self._finish(parts)
        if parts.loop.window_full:
            self._close_window(parts)
        parts.loop.clock.forward_began()
        if self.settings.rescale:
            self._rates.follow(parts.memory)
        self._intake.forward(args, kwargs)

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        parts = self._parts
        if parts is None:
            return
        self._finish(parts)
        if self._unapplicable and self.settings.nonfinite == "skip":
            log.warning("non-finite gradient: this optimiser step is skipped on all ranks")
            usage.drop_gradients(self._module, self._optimizer)

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._unapplicable = False
        if self._parts is not None:
            self._parts.loop.clock.optimizer_ended()
