"""One line: ``model.register_comm_hook(*gravac.hook())``, for programs that have no place for a ``with``."""

import atexit
import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from gravac.codec_text import split_plan
from gravac_agent.agent import Agent
from gravac_agent.errors import SetupError
from gravac_agent.exchange.hook import HookState, gravac_hook, keep
from gravac_agent.integrations.attachment import check_keywords
from gravac_agent.session import ForwardHook
from gravac_agent.settings import AgentSettings, load
from gravac_agent.steps.optimizers import have_stepped

Module = TypeVar("Module", bound=nn.Module)
log = logging.getLogger("gravac.agent")
_PATIENCE = 50
"""Backwards after which it is said that no optimizer was seen."""


def hook(
    plan: str | None = None, **settings: Any
) -> "tuple[WaitingState, Callable[[HookState, dist.GradBucket], torch.futures.Future[torch.Tensor]]]":  # type: ignore[name-defined]
    """Return what ``DistributedDataParallel.register_comm_hook`` takes. Every rank registers it, with equal settings.

    The first step is exchanged as DDP alone would. Then an :class:`gravac.Agent` starts with the optimizer that made
    the step, and ends with the process, without a report of the window that is not full. The state that is returned
    has it as ``agent``, for :meth:`~gravac.Agent.clip_grad_norm_` and :meth:`~gravac.Agent.log`. A training that
    resumes from checkpoints needs ``with gravac.Agent(…)``, which can load a residual before the first step.

    Args:
        plan: What to send, as ``codec@cf`` such as ``topk+twobit@64``; or a codec, of which the policy chooses the CF.
            Default: the settings ``compressor`` and ``policy``.
        settings: Keywords of :class:`gravac.Agent`, ``optimizer`` among them: one, or a list, where the program's is no
            ``torch.optim.Optimizer``. Default: those that step the module's parameters first.

    Raises:
        SetupError: For a keyword that ``Agent`` does not have, or a wrong value.

    Example::

        model = DistributedDataParallel(model)
        model.register_comm_hook(*gravac.hook())
    """
    optimizer = settings.pop("optimizer", None)
    if plan is not None:
        settings = _with_plan(plan, settings)
    check_keywords("gravac.hook", settings)
    # What is an object, such as a policy of one's own, is checked at the start.
    simple = {name: value for name, value in settings.items() if name in AgentSettings.model_fields}
    simple = {name: value for name, value in simple.items() if isinstance(value, str | int | float)}
    return WaitingState(optimizer, settings, load(**simple).enabled), gravac_hook


def _with_plan(plan: str, settings: dict[str, Any]) -> dict[str, Any]:
    codec, cf = split_plan(plan)
    found = {"compressor": codec} | ({} if cf is None else {"policy": f"static:cf={cf}"})
    if twice := [name for name in found if settings.get(name) is not None]:
        raise SetupError(f"gravac.hook({plan!r}, {twice[0]}=…) names {twice[0]} twice: leave one of them out")
    return settings | found


class WaitingState(HookState):
    """The state of a hook whose module and optimizers are seen only when the training runs.

    Args:
        optimizer: The optimizer, or a list; None: those that step first.
        settings: Keywords of ``Agent``.
        enabled: False: it stays plain DDP.
    """

    def __init__(self, optimizer: Any, settings: dict[str, Any], enabled: bool) -> None:
        super().__init__()
        self.agent: Agent | None = None
        """The agent, from the second step on."""
        self._settings, self._waits = settings, enabled
        self._given = (
            list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer][: optimizer is not None]
        )
        self._stepped: list[Optimizer] = []  # that step the module's parameters
        self._resumed = False  # one of them had stepped before
        # Weak: the state is kept as long as the module.
        self._module: weakref.ref[DistributedDataParallel] | None = None
        self._looked, self._backwards = False, 0
        self._handles: list[RemovableHandle] = []

    def all_reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        """Return the dense mean, and at the first bucket look for the module and follow its optimizers."""
        if not self._looked:
            self._looked = True
            try:
                self._look_for_module(bucket.parameters()[0])
            except Exception:  # which would end backward
                log.exception("gravac.hook failed, and compresses nothing")
                self._waits = False
        if self._waits:
            self.bucket(bucket)  # raises for one of another module
        if self._waits and bucket.is_last():
            self._backwards += 1
            if self._backwards == _PATIENCE:
                log.warning(
                    "gravac.hook saw no optimizer step the module's parameters in %d backwards, and compresses "
                    "nothing: pass yours, as in gravac.hook(optimizer=optimizer)",
                    _PATIENCE,
                )
        return super().all_reduce(bucket)

    def _look_for_module(self, parameter: torch.Tensor) -> None:
        """Find the module that has a parameter, and follow it and its optimizers. DDP passes it to no hook."""
        module = next((one for one in _objects(DistributedDataParallel) if _has(one, parameter)), None)
        if module is None:
            self._waits = False
            log.warning(
                "gravac.hook does not find the DistributedDataParallel module, and compresses nothing: write "
                "`with gravac.Agent(module, optimizer):` around the training loop"
            )
            return
        self._module = weakref.ref(module)
        self.belong_to(module)  # also without an agent: its ranks may be a part of all
        if not self._waits:
            return
        keep(module, self)
        self.reserved = True
        from torch._dynamo import (
            OptimizedModule,  # takes a second, but for DDP's forward, which has imported it
        )

        # torch.compile's wrapper does not see hooks inside.
        around = (one for one in _objects(OptimizedModule) if one._orig_mod is module)
        called: nn.Module = next(around, module)
        self._handles = [
            called.register_forward_pre_hook(ForwardHook(self._before_forward), with_kwargs=True)
        ]
        if self._given:
            self._resumed = have_stepped(self._given)
        else:
            self._handles += [
                register_optimizer_step_pre_hook(self._before_step),
                register_optimizer_step_post_hook(self._after_step),
            ]

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._stepped and self._shared(optimizer):
            self._resumed = self._resumed or have_stepped([optimizer])

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Note an optimizer of the module, instead of those around which it was made: theirs end first."""
        if steps := self._shared(optimizer):
            self._stepped = [*(one for one in self._stepped if not self._shared(one) & steps), optimizer]

    def _shared(self, optimizer: Optimizer) -> set[int]:
        """Return the ``id`` of each parameter of the module that an optimizer steps."""
        module = None if self._module is None else self._module()
        known = set() if module is None else {id(one) for one in module.parameters()}
        return {id(one) for group in optimizer.param_groups for one in group["params"] if id(one) in known}

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Start the agent before the first forward after a step. All ranks are there: this one leads to a backward."""
        optimizers = self._given or self._stepped
        if not (self._waits and optimizers and torch.is_grad_enabled() and module.training):
            return
        self._waits = self.reserved = False
        for handle in self._handles:
            handle.remove()
        agent = Agent(module, optimizers, **self._settings)
        agent._start_in_forward(args, kwargs, self._resumed)
        self.agent = agent
        atexit.register(agent._close_at_exit)


def _objects(kind: type[Module]) -> Iterator[Module]:
    """Return the modules of a class that there are."""
    # Not isinstance: it asks a proxy for its class, which may import or fail.
    return (one for one in gc.get_objects() if issubclass(type(one), kind))


def _has(module: nn.Module, parameter: torch.Tensor) -> bool:
    return any(one is parameter for one in module.parameters())
