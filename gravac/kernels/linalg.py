"""Linear algebra on flat tensors: inner products, and sparse vectors added to dense ones."""

import math

import torch
from torch import Tensor

from gravac.kernels import backend, reference

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def product(x: Tensor, y: Tensor) -> Tensor:
    """⟨x, y⟩ in float64, a tensor of shape ``()`` where ``x`` and ``y`` lie: nobody waits for it until it is read."""
    if x.dtype in _FLOATS and y.dtype in _FLOATS and backend.on_gpu(x, y):
        from gravac.kernels.cuda.linalg import inner as on_device

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


def scatter_add(out: Tensor, indices: Tensor, values: Tensor, scale: float = 1.0) -> None:
    """``out[indices] += scale · values``: one rank's payload into the sum. Call it for each rank, in order.

    ``out`` of shape ``(n,)``; ``indices`` (int32 or int64) and ``values`` (any floating type) of shape ``(k,)``. An
    index that occurs twice counts twice. The product is rounded before the sum. Raises ValueError for lengths that
    differ, and IndexError, before anything is added, for an index outside 0..n-1. On a GPU nobody waits to see that:
    out[0] is NaN then. There, sums below 2^-126 come out as 0, and an index that occurs twice adds up in any order.
    """
    if indices.shape != values.shape or indices.dim() != 1 or out.dim() != 1:
        raise ValueError(
            f"out has shape {tuple(out.shape)}, indices {tuple(indices.shape)}, values {tuple(values.shape)}: out must "
            "be flat, and each value needs its place"
        )
    if out.dtype == torch.float32 and out.numel() and backend.on_gpu(out, indices, values):
        from gravac.kernels.cuda.linalg import scatter_add as on_device

        on_device(out.detach(), indices, values.detach(), scale)
        return
    narrow = indices.dtype == torch.int32 and out.dtype == torch.float32
    if narrow and backend.compiled(out, indices, values):
        import numpy as np

        from gravac.kernels.cpu.linalg import scatter_add as compiled

        done = compiled(
            out.detach().numpy(), indices.numpy(), values.detach().float().numpy(), np.float32(scale)
        )
    else:
        done = reference.scatter_add(out, indices, values, scale)
    if not done:
        low, high = int(indices.min()), int(indices.max())
        raise IndexError(
            f"indices reach from {low} to {high}, outside 0..{out.numel() - 1}: the payload is damaged or of another "
            "bucket"
        )


def inner_at(x: Tensor, indices: Tensor, values: Tensor) -> float:
    """Σ values · x[indices] in float64: the inner product with a tensor that is zero elsewhere.

    ``x`` of shape ``(n,)``, ``indices`` (int32 or int64, inside 0..n-1) and ``values`` of shape ``(k,)``.
    """
    if indices.dtype == torch.int32 and x.dtype == torch.float32 and backend.compiled(x, indices, values):
        from gravac.kernels.cpu.linalg import inner_at as compiled

        return float(compiled(x.detach().numpy(), indices.numpy(), values.detach().float().numpy()))
    return float(torch.dot(x[indices].double(), values.double()))
