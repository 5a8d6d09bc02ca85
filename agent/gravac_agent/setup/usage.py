"""What an agent can be used on: clear errors for what it cannot, before anything starts."""

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from gravac import memories
from gravac_agent.errors import SetupError

log = logging.getLogger("gravac.agent")


def ddp_of(module: nn.Module) -> DistributedDataParallel:
    """The DDP module: ``module`` itself, or what ``torch.compile`` made it of."""
    inner = getattr(module, "_orig_mod", module)
    if isinstance(inner, DistributedDataParallel):
        return inner
    what = f"torch.compile of {type(inner).__name__}" if inner is not module else type(module).__name__
    raise SetupError(
        f"Agent wraps a DistributedDataParallel module, got {what}: "
        "write Agent(DistributedDataParallel(model), optimizer)"
    )


def check_arguments(optimizer: object, scaler: object) -> None:
    """What they must be able to do, whatever their class."""
    if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "register_step_pre_hook")):
        raise SetupError(
            f"optimizer={optimizer!r:.100} is not a torch.optim.Optimizer: pass the one that steps the module's "
            "parameters, Agent(module, optimizer)"
        )
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise SetupError(
            f"scaler={scaler!r:.100} is not a torch.amp.GradScaler: pass the one that scales the loss, or leave it out"
        )


def check_devices(module: DistributedDataParallel) -> None:
    devices = {parameter.device.type for parameter in module.parameters() if parameter.requires_grad}
    if devices != {"cpu"}:
        raise SetupError(
            f"this release compresses gradients on the CPU only, the module's are on {', '.join(sorted(devices))}: "
            "pass enabled=False to train it plainly"
        )


def check(module: DistributedDataParallel, optimizer: torch.optim.Optimizer, memory: str) -> None:
    """All that only a running agent needs."""
    _check_owned(module, optimizer)
    check_memory(memory, module, optimizer)
    check_join(module)


def _owned(module: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """How many of the module's trainable parameters ``optimizer`` steps, and how many there are."""
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return sum(id(parameter) in owned for parameter in trainable), len(trainable)


def _check_owned(module: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    owned, there = _owned(module, optimizer)
    if not owned:
        raise SetupError(
            f"optimizer={type(optimizer).__name__} steps none of the module's {there} trainable parameters, so the "
            "agent could not hold back a bad step: make it from module.parameters()"
        )
    if owned < there:
        log.warning(
            "the optimizer steps %d of the module's %d trainable parameters: the agent follows the learning rate of "
            "these only",
            owned,
            there,
        )


def check_memory(memory: str, module: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """A memory that has the momentum must be the only one, and see all gradients."""
    try:
        if not memories.build(memory).transforms:
            return
    except ValueError as error:
        raise SetupError(str(error)) from None
    own = max(float(group.get("momentum") or 0.0) for group in optimizer.param_groups)
    if own:
        raise SetupError(
            f"memory={memory!r} has the momentum, and the optimiser has one of {own:g} on top: "
            "give the optimiser momentum=0"
        )
    sparse = next(sparse_parameters(module.module), None)
    if sparse is not None:
        raise SetupError(
            f"memory={memory!r} has the momentum, and the sparse gradients of {sparse!r} do not pass through it: use "
            "memory='residual' with the optimizer's own momentum, or sparse=False"
        )


def sparse_parameters(module: nn.Module) -> Iterator[str]:
    """Yield the names of the trainable parameters that get sparse gradients, by the test that DDP makes."""
    for prefix, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse and part.weight.requires_grad:
            yield f"{prefix}.weight" if prefix else "weight"


def check_join(module: DistributedDataParallel) -> None:
    """Raise SetupError in a ``Join`` context that the agent would end inside of."""
    if module._join_config.enable:
        raise SetupError(
            "the Agent starts inside a Join context, where ranks would leave it one by one: write "
            "`with Agent(...):` around `with Join([module]):`"
        )


def check_division(module: DistributedDataParallel) -> None:
    """Uneven inputs: gradients are divided by the number of all ranks."""
    if module._join_config.enable and not getattr(module, "_divide_by_initial_world_size", True):
        raise SetupError(
            "divide_by_initial_world_size=False does not work with a communication hook, which the agent is: leave it "
            "out of Join(...)"
        )


def warn_of_steps_outside(optimizer: torch.optim.Optimizer) -> RemovableHandle:
    """Until the handle is removed: say so, once, when ``optimizer`` steps before the agent was entered."""
    said = False

    def warn(*_: Any) -> None:  # it must not remove itself while torch walks through the hooks
        nonlocal said
        if not said:
            said = True
            log.warning(
                "an optimizer step, and the Agent made for it does not run: nothing is compressed. Write "
                "`with Agent(module, optimizer):` around the training loop"
            )

    handle: RemovableHandle = optimizer.register_step_pre_hook(warn)
    return handle


def before_steps(
    module: DistributedDataParallel, optimizer: torch.optim.Optimizer, hook: Any
) -> RemovableHandle:
    """Call ``hook`` before ``optimizer`` steps; before any does, where others step the module's parameters too."""
    owned, there = _owned(module, optimizer)
    if owned < there:
        return register_optimizer_step_pre_hook(hook)
    handle: RemovableHandle = optimizer.register_step_pre_hook(hook)
    return handle


def drop_gradients(module: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Optimizers do nothing where there is no gradient."""
    for parameter in module.parameters():
        parameter.grad = None
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
