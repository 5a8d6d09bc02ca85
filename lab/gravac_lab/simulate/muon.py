"""Muon for the matrices of hidden layers and AdamW for all other parameters, as one optimizer."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


class MuonAdamW(Optimizer):
    """``torch.optim.Muon`` and ``torch.optim.AdamW`` side by side, with learning rates that mean the same in both.

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
        self._parts: list[Optimizer] = [
            torch.optim.AdamW(chosen[False], lr=lr, betas=betas, weight_decay=weight_decay),
            torch.optim.Muon(chosen[True], lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
        ]
        super().__init__([group for part in self._parts for group in part.param_groups], {"lr": lr})
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups = [group]

    def step(self, closure: Any = None) -> Any:
        """Move every parameter that has a gradient."""
        assert closure is None
        for part in self._parts:
            part.step()
