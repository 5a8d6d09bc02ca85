"""Scalars: floats on the host, and tensors on a device, where reading a number would wait for the device."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Scalar = float | Tensor
"""A float for tensors in the host's memory. For a device's tensors, a float64 tensor of shape ``()`` on it."""
_treated: list[None] = []
"""Not empty while the host's tensors are treated as a device's."""


def on_device(x: Tensor) -> bool:
    """Return whether ``x`` is on a device, so that nothing may read its elements within a step."""
    return not x.is_cpu or bool(_treated)


def is_device(device: torch.device | None) -> bool:
    """Return whether tensors there are on a device, as ``on_device``; None is the host."""
    return bool(_treated) or (device is not None and device.type != "cpu")


@contextmanager
def treated_as_device() -> Iterator[None]:
    """Treat the host's tensors as a device's, in all threads. Tests and the simulated device use it.

    Kernels then run in plain torch, and return tensors instead of floats.
    """
    _treated.append(None)  # atomic, as several threads may be inside
    try:
        yield
    finally:
        _treated.pop()


def scalar(x: Tensor) -> Scalar:
    """Return a tensor of one element as a scalar: a float on the host, float64 of shape ``()`` on a device."""
    return x.double().reshape(()) if on_device(x) else float(x)


def alignment(energy: Scalar, inner: Scalar) -> Scalar:
    """Return the energy of x along c, ⟨c, x⟩² / ‖c‖²; ``energy`` itself if that is zero or NaN.

    Args:
        energy: ‖c‖².
        inner: ⟨c, x⟩.
    """
    if isinstance(energy, Tensor):
        return torch.where(energy > 0.0, inner**2 / energy, energy)
    return inner**2 / energy if energy > 0.0 else energy


def placed(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device, without waiting for the copy."""
    if device.type == "cpu":
        return x
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)
