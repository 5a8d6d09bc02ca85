"""Scalars: floats on the host, and tensors on a device, where reading a number would wait for the device."""

import torch
from torch import Tensor

from gravac.kernels.backend import on_device

Scalar = float | Tensor
"""A float for tensors in the host's memory. For a device's tensors, a float64 tensor of shape ``()`` on it."""


def scalar(x: Tensor) -> Scalar:
    """Return a tensor of one element as a scalar: a float on the host, float64 of shape ``()`` on a device."""
    return x.double().reshape(()) if on_device(x) else float(x)


def placed(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device, without waiting for the copy."""
    if device.type == "cpu":
        return x
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)
