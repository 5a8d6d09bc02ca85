"""Optimizers: hooks around their steps, what they have stepped, and the gradients that they step by."""

from collections.abc import Container, Iterable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from gravac_agent.fsdp.model import DataParallel, ShardedModel
from gravac_agent.setup.describe import groups_of


def around_steps(
    optimizers: Sequence[torch.optim.Optimizer], before: Any, after: Any
) -> list[RemovableHandle]:
    """Call hooks around each step of every optimizer, outside of the optimizer's own hooks.

    Args:
        optimizers: The agent's; torch's global hooks do not see one that only looks like one, so it gets its own.
        before: Called with the optimizer and the arguments of its step.
        after: The same.
    """
    looking = [one for one in optimizers if not isinstance(one, torch.optim.Optimizer)]
    found = [one.register_step_pre_hook(before) for one in looking]
    found += [one.register_step_post_hook(after) for one in looking]
    if len(looking) < len(optimizers):
        found += [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    return found


def has_closure(args: Any, kwargs: Any) -> bool:
    """Return whether an optimizer's step, whose arguments these are, evaluates a closure."""
    return any(callable(one) for one in (*args[1:], *kwargs.values()))


def is_foreign(stepped: torch.optim.Optimizer, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Return whether ``stepped`` steps parameters of ``optimizers`` by groups of its own, as a new one does.

    One inside the other, as in SAM, shares its groups.
    """
    groups = {id(group) for group in groups_of(optimizers)}
    if any(id(group) in groups for group in stepped.param_groups):
        return False
    theirs = {id(param) for group in stepped.param_groups for param in group["params"]}
    return any(id(param) in theirs for group in groups_of(optimizers) for param in group["params"])


def have_stepped(optimizers: Iterable[torch.optim.Optimizer]) -> bool:
    """Return whether an optimizer has a state that only a step can have left. Reads nothing on a GPU."""

    def stepped(found: dict[str, Any]) -> bool:
        count = found.get("step")
        if isinstance(count, torch.Tensor) and count.device.type != "cpu":
            return True
        return any(value is not None for value in found.values()) if count is None else float(count) > 0.0

    return any(
        stepped(found) for one in optimizers for found in one.state.values() if isinstance(found, dict)
    )


def gradients_are_zero(module: DataParallel) -> bool:
    """Return whether every gradient is None or zero, as after ``zero_grad``."""
    gradients = [param.grad for param in module.parameters() if param.grad is not None]
    if isinstance(module, ShardedModel):
        return not gradients  # a shard of zeros says nothing of the others
    return not any(gradient.is_sparse or bool(gradient.any()) for gradient in gradients)


def drop_gradients(
    module: DataParallel, optimizer: torch.optim.Optimizer, spared: Container[int] = (), zeros: bool = False
) -> None:
    """Set all gradients to None, so that the optimizer's step does nothing.

    Args:
        module: Its gradients.
        optimizer: Those of the other parameters that it steps.
        spared: ``id`` of parameters to leave alone: those of other agents, which decide for themselves.
        zeros: Set them to zero instead, for a step that computes new ones by a closure and needs some to begin with.
    """
    stepped = (
        param for group in optimizer.param_groups for param in group["params"] if id(param) not in spared
    )
    for parameter in (*module.parameters(), *stepped):
        if not zeros:
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.detach().zero_()
