"""Selections whose sizes are known beforehand, in plain torch: nothing of them is read from a device."""

import torch
from torch import Tensor


def magnitudes(x: Tensor) -> Tensor:
    """Returns ``|x|`` of a float32 tensor as int32 that order as the numbers do, NaN last."""
    return x.view(torch.int32) & 0x7FFFFFFF


def compact(x: Tensor, chosen: Tensor, size: int, fill: int = 0) -> Tensor:
    """Returns ``x[chosen]`` where it is known to have ``size`` elements.

    Args:
        x: Shape ``(n,)``.
        chosen: bool, shape ``(n,)``.
        size: Elements to return: the first chosen ones where there are more.
        fill: Completes them where there are fewer.
    """
    order = chosen.cumsum(0) - 1
    places = torch.where(chosen & (order < size), order, size)
    return x.new_full((size + 1,), fill).scatter_(0, places, x)[:size]


def chosen_places(chosen: Tensor, size: int, fill: int = 0) -> Tensor:
    """Returns the positions of the ``size`` chosen elements, int64, ascending; see ``compact``."""
    return compact(torch.arange(chosen.numel(), device=chosen.device), chosen, size, fill)


def top(x: Tensor, k: int) -> Tensor:
    """Returns the positions (int64, ascending) of the ``k`` largest ``|x|``, the lowest ones among equals."""
    return magnitudes(x).sort(descending=True, stable=True).indices[:k].sort().values


def powers_of_two(lowest: int, highest: int, device: torch.device) -> Tensor:
    """Returns 2^lowest to 2^highest, exactly, float32; exponents are -126 to 127."""
    exponents = torch.arange(lowest, highest + 1, dtype=torch.int32, device=device)
    return ((exponents + 127) << 23).view(torch.float32)


def placed(x: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor of the host on a device, without waiting for the copy."""
    if device.type == "cpu":
        return x
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)
