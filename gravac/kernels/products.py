"""Inner products and squared norms of 1-D tensors of equal length."""

import math

import torch
from torch import Tensor

from gravac.kernels import backend

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def product(x: Tensor, y: Tensor) -> Tensor:
    """⟨x, y⟩ in float64, a tensor of shape ``()`` where ``x`` and ``y`` lie: nobody waits for it until it is read."""
    if x.dtype in _FLOATS and y.dtype in _FLOATS and backend.on_gpu(x, y):
        from gravac.kernels.cuda.products import inner as on_device

        return on_device(x.detach(), y.detach())
    return torch.dot(x.double(), y.double())


def inner(x: Tensor, y: Tensor) -> float:
    """⟨x, y⟩; see ``energy`` about range. On a GPU it waits for the result; ``product`` does not."""
    if x.device.type == "cpu":
        value = float(torch.dot(x.float(), y.float()))
        if 1e-30 < abs(value) < math.inf:
            return value
    return float(product(x, y))


def energy(x: Tensor) -> float:
    """Squared L2 norm. Non-finite only if an element is, zero only if all are (sums that overflow or fall where float32
    gets coarse are redone in float64). On a GPU it waits for the result; ``product(x, x)`` does not."""
    return inner(x, x)
