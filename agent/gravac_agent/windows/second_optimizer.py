"""A second optimizer of the same class and settings as the training's, for other parameters."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

NOT_SETTINGS = frozenset({"params", "param_names"})
"""Entries of a parameter group that are no settings."""
UNSCALES = ("grad_scale", "found_inf")
"""Attributes by which a GradScaler passes the loss scale to optimizers that unscale the gradients themselves."""

LOCAL = frozenset(
    {
        *(torch.optim.ASGD, torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW),
        *(torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop),
        torch.optim.SGD,
    }
)
"""Optimizers that step each element of a parameter for itself, draw no random numbers and talk to nobody."""


def second_optimizer(
    optimizer: Optimizer, groups: Sequence[Mapping[str, Any]], parameters: Sequence[tuple[int, nn.Parameter]]
) -> Optimizer:
    """Return an optimizer of the same class for other parameters.

    Args:
        optimizer: The first one.
        groups: Its groups, for their settings.
        parameters: The other parameters, each with the number of its group.
    """
    copied: list[dict[str, Any]] = [
        {key: value for key, value in group.items() if key not in NOT_SETTINGS} | {"params": []}
        for group in groups
    ]
    for group, parameter in parameters:
        copied[group]["params"].append(parameter)
    kind: Any = type(optimizer)
    known = inspect.signature(kind).parameters
    defaults = {key: value for key, value in optimizer.defaults.items() if key in known}
    second: Optimizer = kind(copied, **defaults)
    return second


def follow(second: Optimizer, optimizer: Optimizer) -> None:
    """Give the second optimizer the settings that the first one has now, such as its learning rates."""
    for mine, theirs in zip(second.param_groups, optimizer.param_groups, strict=True):
        mine.update({key: value for key, value in theirs.items() if key not in NOT_SETTINGS})
    for name in UNSCALES:
        setattr(second, name, getattr(optimizer, name, None))


def step(optimizer: Optimizer) -> None:
    """Step without the hooks of all optimizers, which are about steps of the training."""
    getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)(optimizer)


def steps_elements_alone(optimizer: Optimizer) -> bool:
    """Return whether the optimizer is known to step each element of a parameter for itself, as SGD and Adam do.

    Subclasses and other classes are not tried out: a step of them may talk to other ranks, draw random numbers of the
    training, or count how often it runs.
    """
    return type(optimizer) in LOCAL
