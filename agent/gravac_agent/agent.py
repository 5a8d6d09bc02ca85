"""The agent as a trainer sees it: a context manager around a DDP module or an FSDP2 model."""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gravac import memories
from gravac.policies import ObservePolicy, parse
from gravac.policies.base import Policy
from gravac_agent import sinks
from gravac_agent.devices.cuda import made_current
from gravac_agent.errors import ClosedError, SetupError
from gravac_agent.fsdp.attach import exchange_densely
from gravac_agent.fsdp.replicas import Replicas
from gravac_agent.network.link import Link
from gravac_agent.reporting.reporter import Reporter
from gravac_agent.run_log import enable_loggers
from gravac_agent.session import AgentState, Session
from gravac_agent.settings import DEFAULT, AgentSettings, Default, keywords_checked, load
from gravac_agent.setup import running, usage
from gravac_agent.setup.agree import Asked
from gravac_agent.setup.build import Parts
from gravac_agent.setup.describe import number
from gravac_agent.setup.usage import Scaler
from gravac_agent.state import by_rank, checkpoint
from gravac_agent.state.switch import switch
from gravac_agent.windows.meters import logged

_ordinary = torch.inference_mode(False)
"""What a method makes outlives an ``inference_mode`` around the call, in which it would make inference tensors."""


class Agent:
    """Compresses the gradients of a DDP module or an FSDP2 model. Decides once a window how far, for all ranks alike.

    Every rank makes an agent, with the same settings, and runs its training loop inside ``with``. Where ``with`` does
    not fit, call :meth:`start` before the first step and :meth:`close` after the last one.

    A process may run several agents, each for a module with parameters of its own: all ranks make them, and start
    them, in the same order.

    A setting that is None, or not given, comes from the environment variable ``GRAVAC_<NAME>``, else it has the
    default named here.

    Args:
        module: The DDP module, or the model after ``fully_shard`` or ``replicate`` (FSDP2), or ``torch.compile`` of
            one.
        optimizer: The optimizer that steps the module's parameters, or a wrapper such as Accelerate's; a list of
            several that step different parameters.
        enabled: False trains without the agent: nothing is registered and nothing is started. Default: True.
        compressor: Codec or aggregator, ``name`` or ``name:setting=value,…``; ``gravac codecs`` lists them. The default
            sends 16-bit values, so CF 10 is 15 on the wire; the residual keeps the rounding error.
            Default: ``topk+bf16``.
        memory: Error memory, ``name`` or ``name:setting=value,…``. Default: ``residual``.
        collective: Collective that exchanges a codec's payloads. ``auto`` takes the fastest by the cost model on the
            network, which the agent measures at the start; ``gather``, ``owners``, ``shared``,
            ``shared:leader=largest``, ``all-reduce`` or ``compressed-all-reduce``: that one. Linear codecs are always
            all-reduced, and aggregators bring their own. Default: ``auto``.
        policy: Decision rule, ``name`` or ``name:setting=value,…`` such as ``static:cf=100``, or a
            :class:`~gravac.policies.Policy`. One that is not registered needs ``controller=None``. Default: ``auto``.
        window: Steps between decisions. Fewer react faster and measure less precisely. Default: 50.
        controller: ``auto``: rank 0 starts a controller that ends with the agent; ``http://…``: use that one; None, or
            ``none`` in the environment: decide in the process of rank 0. Default: ``auto``.
        job: Name of the job; without one, it is made of the script's name and the start time. A further agent of a
            process, without a name of its own, adds a number to that of the first, such as ``<job>-2``. Default: none.
        data_dir: Folder of the journals, with a folder for each job. Default: ``gravac-runs``.
        page_port: Port of the controller that rank 0 starts; 0 takes any free one. Default: 0.
        link: Emulates a slow link, such as ``100mbit`` or a :class:`Link`, by delaying collectives; ``none`` is the
            real network. Default: ``none``.
        levels: Whether the ranks of a host share its link to the others: each then exchanges its part of a bucket with
            other hosts, after a reduce-scatter inside its own (docs/collectives.md). ``auto``: so do those of one host
            name, where all hosts have as many ranks and the link between them is measured to be the slower one, unless
            the policy never compresses; ``host``: so do they in any case; a number: so many ranks, one after the other;
            ``flat``: each rank exchanges all of its gradient. DDP and ``replicate()`` have two levels, on a GPU only
            with ``host`` or a number. Default: ``auto``.
        nonfinite: When a rank's gradient is NaN or infinite, ``skip`` skips the optimizer step on all ranks and
            ``propagate`` leaves it to the optimizer, as plain DDP does. Either way it stays out of the error memory. On
            a GPU the optimizer gets it, unless a GradScaler or :meth:`clip_grad_norm_` is used (docs/gpus.md). Policy
            ``observe`` propagates unless you say ``skip``. Default: ``skip``.
        agreement_seconds: How long ranks wait for each other in the agent's own collectives, in seconds. Default: 300.
        adapt_optimizer: Whether a ``torch.optim.AdamW`` or ``Adam`` steps as that of ``gravac.optim`` while the agent
            runs (docs/adam.md). Default: False.
        sink: Where rank 0 also writes its figures and decisions: ``wandb``, ``mlflow``, ``trackio``, ``tensorboard`` or
            ``otlp``, with settings such as ``tensorboard:dir=runs/x``; several with ``;`` between. Or an object of one
            of their clients, such as a ``wandb.Run`` or a ``SummaryWriter``, or a list. Default: ``none``.
        steering: Who may steer the job at a controller that rank 0 starts. ``off``: nobody; ``owner``: the owner of
            ``data_dir``, with ``gravac steer``. Default: ``off``.
        token: Token of a controller that asks for one. Default: none.
        scaler: The :class:`torch.amp.GradScaler` in use, so that the residual follows its scale. Default: none.
        replicate: Ranks with the same shard of an FSDP2 model, one on each node, such as ``mesh["replicate"]``. The
            agent exchanges gradients between them, dense with ``enabled=False`` (HSDP, docs/fsdp.md). Without it, those
            of the model's own mesh. Default: none.

    Raises:
        SetupError: For wrong use or a wrong value; the message says what to change.

    Example::

        with gravac.Agent(ddp_model, optimizer) as agent:
            for x, y in loader:
                loss = criterion(ddp_model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                agent.log(loss=loss)  # optional
    """

    @keywords_checked
    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        enabled: bool | None = None,
        compressor: str | None = None,
        memory: str | None = None,
        collective: str | None = None,
        policy: str | Policy | None = None,
        window: int | None = None,
        controller: str | Default | None = DEFAULT,
        job: str | None = None,
        data_dir: str | Path | None = None,
        page_port: int | None = None,
        link: str | Link | None = None,
        levels: str | int | None = None,
        nonfinite: Literal["skip", "propagate"] | None = None,
        agreement_seconds: float | None = None,
        adapt_optimizer: bool | None = None,
        sink: str | object | None = None,
        steering: Literal["off", "owner"] | None = None,
        token: str | None = None,
        scaler: Scaler | None = None,
        replicate: Replicas | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in AgentSettings.model_fields}
        usage.check_instances(policy, link, data_dir)
        own_policy = given.pop("policy") if isinstance(policy, Policy) else None
        own_link = given.pop("link") if isinstance(link, Link) else None
        given["sink"], own_sinks = sinks.split(sink)
        given["data_dir"] = data_dir and Path(data_dir)
        if controller is None:
            given["controller"] = "none"
        self.settings: AgentSettings = load(**given)
        observes = isinstance(own_policy or parse(self.settings.policy), ObservePolicy)
        if observes and memories.build(self.settings.memory).transforms:
            raise SetupError(
                f"memory={self.settings.memory!r} changes uncompressed gradients too, and policy 'observe' none: leave "
                "memory out"
            )
        if observes and "nonfinite" not in self.settings.model_fields_set:
            self.settings = self.settings.model_copy(update={"nonfinite": "propagate"})
        optimizers = []
        for one in optimizer if isinstance(optimizer, list | tuple) and optimizer else (optimizer,):
            unwrapped, scaler = usage.unwrapped(one, scaler)
            usage.check_arguments(unwrapped, scaler)
            optimizers.append(unwrapped)
        inner = usage.unwrapped_module(module)
        self._module, self._optimizers = module, optimizers
        self._session: Session | None = None
        self._started = self._closed = False
        number, self._reminders = 0, []
        if not dist.is_initialized():
            raise SetupError("no process group: call torch.distributed.init_process_group first")
        if self.settings.enabled or replicate is not None:
            trained = usage.data_parallel(inner, replicate)
            exchange_densely(trained)  # until the start
        if self.settings.enabled:
            enable_loggers()
            usage.check_devices(trained)
            number = running.next_number(dist.get_process_group_ranks(trained.process_group))
            self._reminders = [usage.warn_of_steps_outside(one) for one in optimizers]
        self._asked = Asked(
            self.settings, own_policy, own_link, scaler, replicate, job is not None, number, own_sinks
        )

    @_ordinary
    def start(self) -> None:
        """Start compressing; ``with`` calls it. Every rank calls it, before the first step.

        Raises:
            SetupError: On all ranks, when one of them cannot start; also for a second call.
            AgreementError: On all ranks, when their settings differ.
            ClosedError: When the agent was closed.
        """
        if self._closed:
            raise ClosedError("this Agent was closed; make a new one")
        if self._started:
            raise SetupError("this Agent was started already: call start() once, or use `with` without it")
        if self.settings.enabled:
            devices = (one.device for one in self._module.parameters() if one.requires_grad)
            with made_current(next(devices, torch.device("cpu"))):
                self._session = Session(self._module, self._optimizers, self._asked)
        self._started = True
        self._drop_reminder()

    @_ordinary
    def close(self, *, clean: bool = True) -> None:
        """Report the last window and give the module back to plain DDP; ``with`` calls it. Later calls do nothing.

        The residual is added to the gradients of the next backward, so nothing is lost. Every rank calls it. Threads,
        files and process groups of the agent end with it; a rank that hangs delays that by at most 10 seconds.

        Args:
            clean: False after an exception: skips what needs the other ranks, which may have ended.
        """
        self._close(clean, not clean)

    def _close(self, clean: bool, failed: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self._drop_reminder()
        session, self._session = self._session, None
        if session is not None:
            session.close(clean, failed)

    def _close_at_exit(self) -> None:
        """Close with the process. Other ranks may have ended long ago, so nothing waits for them."""
        failed = getattr(sys, "last_value", None) is not None  # what ended the program
        self._close(False, failed)

    @_ordinary
    def _start_in_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any], resumed: bool) -> None:
        """Start in a forward, after a step without the agent. See ``Session.steps.begin_in_forward``."""
        self.start()
        if self._session is not None:
            self._session.steps.begin_in_forward(args, kwargs, resumed)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(clean=kind is None)

    def log(self, *, loss: float | Tensor | None = None, samples: int | None = None) -> None:
        """Report figures that only the trainer knows. Call it after the optimizer step.

        Args:
            loss: Loss of the step just done, drawn beside the CF. A tensor on a GPU is read one step later, so that
                nothing waits for it.
            samples: Samples in a step of this rank. Without it, the first dimension of the first tensor passed to
                ``forward`` counts.

        Raises:
            ClosedError: When the agent was closed.
            SetupError: When it was not started, or a figure is not a number.
        """
        if self._closed:
            raise ClosedError("this Agent is closed: log inside its `with` block")
        figures = logged(loss, samples)
        if self.settings.enabled:
            self._running().log(*figures)

    def figures(self) -> dict[str, float]:
        """Return what sinks get of the newest window, by name, for a logger that has no sink; {} if not ``enabled``.

        The other ranks than 0, and all before the first window, know only the plan in force.

        Raises:
            ClosedError: When the agent was closed.
            SetupError: When it was not started.
        """
        if self._closed:
            raise ClosedError("this Agent is closed: ask for its figures inside its `with` block")
        return self._running().figures() if self.settings.enabled else {}

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Tensor:
        """Clip the module's gradients as plain DDP would have clipped them.

        Use it instead of ``torch.nn.utils.clip_grad_norm_(model.parameters(), …)``, on every rank: after backward and
        ``scaler.unscale_``, before the optimizer steps. Arguments and result are torch's. What a codec sends can have a
        much larger norm than the gradient, and would be cut too far. So the estimated norm of the mean of the raw
        gradients counts where it is smaller. Where gradients were sent uncompressed, and with ``enabled=False``, they
        are clipped as torch clips them, bit for bit.

        Args:
            max_norm: Largest norm that a dense gradient should have.
            norm_type: Order of the norm. Orders other than 2 are clipped as by torch.
            error_if_nonfinite: Raise RuntimeError where the norm is NaN or infinite.
            foreach: As in torch.

        Returns:
            The norm of the exchanged gradients before clipping, as a scalar tensor.

        Raises:
            ClosedError: When the agent was closed.
            SetupError: When it was not started.
        """
        if self._closed:
            raise ClosedError("this Agent is closed: clip inside its `with` block")
        single = (
            isinstance(max_norm, Tensor) and max_norm.numel() == 1
        )  # it may be on a GPU, and is not read here
        if not single and number(max_norm, math.inf) is None:
            raise SetupError(
                f"max_norm={max_norm!r:.100} is not a number from 0 on: write agent.clip_grad_norm_(1.0), without the "
                "parameters, which are the module's"
            )
        if not self.settings.enabled:
            parameters = self._module.parameters()
            return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
        return self._running().steps.clip_grad_norm_(max_norm, norm_type, error_if_nonfinite, foreach)

    def finish_backward(self) -> None:
        """End the step's exchange between backward and the update, where ``optimizer.step(closure)`` runs backward.

        Without a closure, and with ``enabled=False``, it does nothing. In a closure, call it after backward, and after
        :meth:`clip_grad_norm_` if you clip: a step with a non-finite gradient is then skipped, and an error of another
        rank is raised before the parameters change.

        Raises:
            ClosedError: When the agent was closed.
            SetupError: When it was not started.
            PeerError: When a collective of the step failed.
        """
        if self.settings.enabled:
            self._running().steps.finish_backward()

    @property
    def state(self) -> AgentState | None:
        """What the agent does now; None when it does not run."""
        return None if self._session is None else self._session.state()

    @property
    def url(self) -> str | None:
        """Address of the live page, on rank 0 once the controller answers; else None."""
        return None if self._reporter is None else self._reporter.url

    @property
    def trace_path(self) -> Path | None:
        """The job's journal, on rank 0 when it is on this machine; else None."""
        return None if self._reporter is None else self._reporter.trace_path

    def wait_ready(self, seconds: float = 30.0) -> bool:
        """Wait on rank 0 until the controller answers. Training does not need it: it starts dense.

        Args:
            seconds: Longest wait.

        Returns:
            Whether the controller answers; True at once on other ranks.
        """
        return self._reporter is None or self._reporter.wait_ready(seconds)

    @_ordinary
    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residual, plan and gain averages, for a checkpoint between steps.

        ``torch.distributed.checkpoint.save({"agent": agent, …})`` calls it and saves the states of all ranks.

        Returns:
            Plain tensors, numbers and strings under the key ``rank<number>``: ``torch.load(…, weights_only=True)``
            reads them. Save one per rank. With ``enabled=False`` there is nothing under it.
        """
        if not self.settings.enabled and not self._closed:
            return {by_rank.FORMAT: by_rank.VERSION}
        session = self._running()
        session.steps.finish_step()
        session.parts.executor.abandon()  # a backward that ended in an exception
        state = checkpoint.save(session.parts, session.layout, session.module, session.rates)
        return by_rank.pack(state, by_rank.key_of(session.module))

    @_ordinary
    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a checkpoint. Every rank calls it, before the first step.

        ``torch.distributed.checkpoint.load({"agent": agent, …}, planner=gravac.LoadPlanner())`` calls it.

        Args:
            state: This rank's state; after a change of the number of ranks, the list of all ranks' states. Where it has
                none, the agent starts from zero with a warning.

        Raises:
            SetupError: On all ranks, when a state does not fit on one, or is damaged. Nothing has changed then.
            AgreementError: On all ranks, when they load states of different steps. Nothing has changed then.
        """
        if not self.settings.enabled and not self._closed:
            checkpoint.warn_of_unused(state)
            return
        session = self._running()
        if session.parts.loop.step:
            raise SetupError(
                f"load_state_dict came after step {session.parts.loop.step}: call it before the first step, right "
                "after `with gravac.Agent(…) as agent:`"
            )
        session.steps.regrouper = checkpoint.load_everywhere(
            state, session.parts, session.module, session.rates
        )
        session.steps.without_state = False

    @_ordinary
    def switch(
        self, *, compressor: str | None = None, memory: str | None = None, collective: str | None = None
    ) -> None:
        """Change codec, error memory or collective, and keep the residual. Every rank calls it, between steps.

        Args:
            compressor: See :class:`Agent`; None keeps the present one.
            memory: See :class:`Agent`; None keeps the present one.
            collective: See :class:`Agent`; None keeps the present one.

        Raises:
            SetupError: When the change is not possible; nothing is changed then.
            AgreementError: On all ranks, when their arguments differ.
        """
        session = self._running()
        session.steps.finish_step()
        if memory is not None:
            usage.check_memory(memory, session.module, self._optimizers)
        switch(session.parts, compressor, memory, collective)

    @property
    def _parts(self) -> Parts | None:
        return None if self._session is None else self._session.parts

    @property
    def _reporter(self) -> Reporter | None:
        return None if self._session is None else self._session.parts.reporter

    def _running(self) -> Session:
        if self._closed:
            raise ClosedError("this Agent is closed")
        if self._session is None:
            raise SetupError("this Agent does not run: use it inside `with`, and with enabled=True")
        return self._session

    def _drop_reminder(self) -> None:
        for reminder in self._reminders:
            reminder.remove()
        self._reminders.clear()
