"""What differs on a device, where reading a number would wait for it: sums and energies are tensors there."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Scalar = float | Tensor
"""A float for tensors in the host's memory; for a device's tensors a float64 tensor of shape ``()`` beside them."""
_treated: list[None] = []
"""Not empty while the host's tensors are treated as a device's."""


def on_device(x: Tensor) -> bool:
    """Returns whether ``x`` is on a device, so that nothing may read its elements within a step."""
    return not x.is_cpu or bool(_treated)


def is_device(device: torch.device | None) -> bool:
    """Returns whether tensors there are on a device, as ``on_device``; None is the host."""
    return bool(_treated) or (device is not None and device.type != "cpu")


@contextmanager
def treated_as_device() -> Iterator[None]:
    """Treats the host's tensors as a device's, in all threads: for tests, and for the simulated device.

    Kernels run in plain torch then, and give tensors instead of floats.
    """
    _treated.append(None)  # atomic, as several threads may be inside
    try:
        yield
    finally:
        _treated.pop()


def scalar(x: Tensor) -> Scalar:
    """Returns a tensor of one element as a scalar: a float on the host, float64 of shape ``()`` on a device."""
    return x.double().reshape(()) if on_device(x) else float(x)


def alignment(energy: Scalar, inner: Scalar) -> Scalar:
    """Returns the energy of x along c: ⟨c, x⟩² / ‖c‖²; ``energy``, ‖c‖², where that is zero or NaN.

    Args:
        energy: ‖c‖².
        inner: ⟨c, x⟩.
    """
    if isinstance(energy, Tensor):
        return torch.where(energy > 0.0, inner**2 / energy, energy)
    return inner**2 / energy if energy > 0.0 else energy


def placed(x: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor of the host on a device, without waiting for the copy."""
    if device.type == "cpu":
        return x
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)
