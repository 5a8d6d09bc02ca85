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

RATE = 0.01
"""Learning rate for trying an optimizer out. Its own may be 0 at the start of a warm-up."""


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


@torch.no_grad()
def steps_elements_alone(optimizer: Optimizer) -> bool:
    """Whether the optimizer steps each element of a parameter for itself, as SGD and Adam do.

    Tried out: a second one of its class must step some elements of a small matrix alone to the same values as in the
    matrix. Those of Muon, LAMB and Adafactor move otherwise; LBFGS needs a closure.
    """
    generator = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(4, 6, 8, generator=generator)
    some = torch.randperm(48, generator=generator)[:20]
    try:
        with torch.random.fork_rng(devices=[]):
            for settings in optimizer.param_groups:
                group = settings | ({"lr": RATE} if "lr" in settings else {})
                matrix, elements = nn.Parameter(start.clone()), nn.Parameter(start.flatten()[some])
                both = [second_optimizer(optimizer, [group], [(0, each)]) for each in (matrix, elements)]
                for gradient in gradients:
                    matrix.grad, elements.grad = gradient.clone(), gradient.flatten()[some]
                    for each in both:
                        step(each)
                if not torch.allclose(matrix.flatten()[some], elements, rtol=1e-5, atol=1e-6):
                    return False
    except Exception:
        return False
    return True
