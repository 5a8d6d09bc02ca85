"""Optimizers of recipes, by name: SGD with momentum, AdamW of torch and of ``gravac.optim``, LAMB, and Muon with AdamW.

Besides the keys of a task's rates, ``adamw-aged`` is ``gravac.optim.AdamW``, and ``adamw-low-beta`` AdamW with β₁ 0.5.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gravac import optim
from gravac_lab.tasks import recipe

MOMENTUM = 0.9
BETAS, LOW_BETA = (0.9, 0.95), 0.5
WEIGHT_DECAY = 0.1
"""Weight decay of AdamW and LAMB."""


class Lamb(Optimizer):
    """LAMB (You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2).

    Each tensor moves by its own norm times the learning rate, in the direction of Adam's step with weight decay.
    As in Adam, the moments' start is corrected. A tensor whose weights or step are all zero moves as in Adam.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate.
        betas: Decay of the mean of gradients and of their squares, per step.
        eps: Added to the root of the mean square.
        weight_decay: Added to the step, as a multiple of the weights.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-2,
        betas: tuple[float, float] = BETAS,
        eps: float = 1e-6,
        weight_decay: float = WEIGHT_DECAY,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Move every parameter that has a gradient. Returns what the closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        return loss

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        first, second = group["betas"]
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = square.div(1 - second ** state["step"]).sqrt_().add_(group["eps"])
        move = mean.div(1 - first ** state["step"]).div_(root).add_(parameter, alpha=group["weight_decay"])
        weights, length = parameter.norm(), move.norm()
        trust = torch.where((weights > 0) & (length > 0), weights / length, 1.0)
        parameter.sub_(move.mul_(trust), alpha=group["lr"])


class MuonAdamW(Optimizer):
    """Muon for the matrices of hidden layers and AdamW for the rest, with learning rates that mean the same in both.

    Args:
        params: Parameters, in their order in the model.
        hidden: Whether each is a matrix that Muon steps.
        lr: Learning rate.
        betas: AdamW's.
        weight_decay: Of both.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        hidden: Iterable[bool],
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        chosen: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
        for parameter, own in zip(params, hidden, strict=True):
            chosen[own].append(parameter)
        self.parts: list[Optimizer] = [
            torch.optim.AdamW(chosen[False], lr=lr, betas=betas, weight_decay=weight_decay),
            torch.optim.Muon(chosen[True], lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
        ]
        super().__init__([group for part in self.parts for group in part.param_groups], {"lr": lr})
        for part, group in zip(self.parts, self.param_groups, strict=True):
            part.param_groups = [group]

    def step(self, closure: Any = None) -> Any:
        """Move every parameter that has a gradient."""
        assert closure is None
        for part in self.parts:
            part.step()


def choose(
    optimizer: str,
    rates: Mapping[str, float],
    rate: float | None,
    weight_decay: float = 0.0,
    momentum: float = MOMENTUM,
    hidden: Sequence[bool] = (),
    beta2: float = BETAS[1],
) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
    """Return what makes an optimizer from parameters.

    Args:
        optimizer: A key of ``rates``, or a kind of AdamW, with its rate.
        rates: Peak learning rate of each optimizer on the task.
        rate: Another peak learning rate; None: that of the task.
        weight_decay: Of SGD; AdamW and LAMB have ``WEIGHT_DECAY``.
        momentum: Of SGD.
        hidden: Whether each parameter is a matrix that Muon steps, if there is ``muon``, with AdamW's rate.
        beta2: Decay of AdamW's second moment, per step.

    Raises:
        TaskError: The optimizer is unknown.
    """
    like_adamw = ("adamw-aged", "adamw-low-beta", *(("muon",) if hidden else ()))
    lr = recipe.choose("optimizer", optimizer, {**rates, **dict.fromkeys(like_adamw, rates["adamw"])})
    lr = lr if rate is None else rate
    if optimizer == "sgd":
        return partial(torch.optim.SGD, lr=lr, momentum=momentum, weight_decay=weight_decay)
    if optimizer.startswith("adamw"):
        kind = optim.AdamW if optimizer == "adamw-aged" else torch.optim.AdamW
        beta1 = LOW_BETA if optimizer == "adamw-low-beta" else BETAS[0]
        return partial(kind, lr=lr, betas=(beta1, beta2), weight_decay=WEIGHT_DECAY)
    if optimizer == "muon":
        return partial(MuonAdamW, hidden=hidden, lr=lr, betas=BETAS, weight_decay=WEIGHT_DECAY)
    return partial(Lamb, lr=lr)
