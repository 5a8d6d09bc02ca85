"""The agent of a framework's callback: settings, start on what the framework made, end."""

import atexit
import inspect
import logging
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gravac.wording import did_you_mean
from gravac_agent.agent import Agent
from gravac_agent.errors import SetupError
from gravac_agent.fsdp.model import is_sharded, wrapper
from gravac_agent.settings import load
from gravac_agent.setup import usage

log = logging.getLogger("gravac.agent")

KEYWORDS = [name for name in inspect.signature(Agent).parameters if name not in ("module", "optimizer")]


def check_keywords(caller: str, settings: dict[str, Any]) -> None:
    """Raise SetupError for a keyword that ``Agent`` does not have.

    Args:
        caller: Who takes them, for the message.
        settings: By keyword.
    """
    for name in settings:
        if name not in KEYWORDS:
            raise SetupError(
                f"{caller} has no setting {name!r}{did_you_mean(name, KEYWORDS)}: it takes the keywords of Agent"
            )


class Attachment:
    """Holds the agent of a callback between the start and the end of a training.

    Args:
        callback: Name of the callback, for messages.
        settings: Keywords of ``Agent``.

    Raises:
        SetupError: For a keyword that ``Agent`` does not have.
    """

    def __init__(self, callback: str, settings: dict[str, Any]) -> None:
        check_keywords(callback, settings)
        self._callback, self._settings = callback, settings
        self.agent: Agent | None = None

    def start(self, module: nn.Module, optimizer: Any, scaler: Any = None) -> Agent | None:
        """Start an agent on the framework's DDP module. An agent of an earlier training, which failed, ends first.

        Args:
            module: What the framework wrapped the model into.
            optimizer: The optimizer.
            scaler: The framework's GradScaler, if it uses one.

        Returns:
            The agent; None with ``enabled=False``, and where one process trains alone.

        Raises:
            SetupError: When several processes train and the module is not DDP, or for wrong settings.
        """
        self.close(clean=False)
        if not load(enabled=self._settings.get("enabled")).enabled:
            return None
        inner = getattr(module, "_orig_mod", module)
        if not isinstance(inner, DistributedDataParallel):
            if not dist.is_initialized() or dist.get_world_size() == 1:
                log.warning("%s does nothing: one process trains alone, without DDP", self._callback)
                return None
            raise SetupError(self._not_ddp(inner))
        agent = Agent(module, optimizer, **{"scaler": scaler, **self._settings})
        agent.start()
        self.agent = agent
        atexit.register(self.close, clean=False)  # for frameworks that tell callbacks of no exception
        return agent

    def close(self, *, clean: bool) -> None:
        """Close the agent, if one runs. ``clean``: as in ``Agent.close``."""
        agent, self.agent = self.agent, None
        if agent is not None:
            atexit.unregister(self.close)
            agent.close(clean=clean)

    def _not_ddp(self, module: nn.Module) -> str:
        if part := next((one for one in module.modules() if is_sharded(one)), None):
            return (
                f"{self._callback} does not support FSDP2 yet, and {wrapper(part)} wrapped {type(module).__name__}: "
                "train with DDP, write Agent(model, optimizer) in a loop of your own (docs/fsdp.md), or pass "
                "enabled=False"
            )
        got = f"got {type(module).__name__}{usage.explained(module)}"
        return f"{self._callback} needs a DistributedDataParallel module, {got}: train with DDP, or pass enabled=False"
