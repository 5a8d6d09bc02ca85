"""The second moments that an optimizer keeps of each parameter's gradient, which it divides its steps by."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gravac.memories import Bucket
from gravac_agent.setup.describe import innermost

NAMES = ("max_exp_avg_sq", "exp_avg_sq", "square_avg")
"""What torch.optim calls them: Adam with ``amsgrad``, Adam and its relatives, RMSprop."""


class SecondMoments:
    """Reads an optimizer's second moments between two of its steps; other threads may compute gradients meanwhile.

    Args:
        optimizer: Any optimizer, or a wrapper of one.
        parameters: The module's parameters by name.
    """

    def __init__(self, optimizer: Any, parameters: Mapping[str, Tensor]) -> None:
        self._optimizer, self._parameters = innermost(optimizer), parameters

    def divisor(self, bucket: Bucket, every: int = 1) -> Tensor | None:
        """Return √v + eps of a bucket's elements, as Adam divides by it, with v corrected for its start at zero.

        Args:
            bucket: Which parameters.
            every: Return the elements 0, ``every``, 2 · ``every``, … of the bucket only.

        Returns:
            float32, on the parameters' device. None where a parameter has no second moment (yet).
        """
        groups = {id(p): group for group in self._optimizer.param_groups for p in group["params"]}
        pieces, start = [], 0
        for name, numel in zip(bucket.names, bucket.numels, strict=True):
            parameter = self._parameters.get(name)
            group = groups.get(id(parameter))
            if parameter is None or group is None:
                return None
            state = self._optimizer.state.get(parameter, {})
            moments = _moments(state)
            if moments is None or moments.numel() != numel:
                return None
            piece = moments[-start % every :: every].float()
            pieces.append((piece / _correction(state, group)).sqrt_().add_(float(group.get("eps", 0.0))))
            start += numel
        divisor = torch.cat(pieces)
        return divisor if bool((divisor > 0).all()) else None


def _moments(state: Mapping[str, Any]) -> Tensor | None:
    for name in NAMES:
        value = state.get(name)
        if isinstance(value, Tensor):
            return (torch.view_as_real(value) if value.is_complex() else value).detach().reshape(-1)
    return None


def _correction(state: Mapping[str, Any], group: Mapping[str, Any]) -> float:
    """Return 1 - β₂^t where the optimizer states both, else 1."""
    betas, step = group.get("betas"), state.get("step")
    if betas is None or step is None or len(betas) < 2 or not float(step) > 0:
        return 1.0
    correction = 1.0 - float(betas[1]) ** float(step)
    return correction if math.isfinite(correction) and correction > 0 else 1.0
