"""Linear algebra on flat tensors: inner products, and sparse vectors added to dense ones."""

import math

import torch
from torch import Tensor

from gravac.kernels import backend, reference
from gravac.kernels.backend import Scalar, scalar

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def product(x: Tensor, y: Tensor) -> Tensor:
    """Return ⟨x, y⟩ in float64 as a tensor of shape ``()`` on their device; nothing waits until it is read."""
    if x.dtype in _FLOATS and y.dtype in _FLOATS and backend.on_gpu(x, y):
        from gravac.kernels.cuda.linalg import inner as on_gpu

        return on_gpu(x.detach(), y.detach())
    return torch.dot(x.double(), y.double())


def inner(x: Tensor, y: Tensor) -> Scalar:
    """Return ⟨x, y⟩: a float on the host, a tensor on a device. For its range see ``energy``."""
    if backend.treated or not x.is_cpu:
        return product(x, y)
    # In float32 first, which is quicker and mostly exact enough: float64 would make copies twice as large.
    value = float(torch.dot(x.float(), y.float()))
    return value if 1e-30 < abs(value) < math.inf else float(product(x, y))


def energy(x: Tensor) -> Scalar:
    """Return the squared L2 norm: a float on the host, a tensor on a device.

    It is non-finite only if an element is, and zero only if all elements are. Sums that overflow, or are so small that
    float32 gets coarse, are computed again in float64. On a device all are computed in float64.
    """
    if x.is_cpu and not backend.treated:
        narrow = x.float()
        value = float(torch.dot(narrow, narrow))
        if 1e-30 < value < math.inf:
            return value
    return inner(x, x)


def add_finite(out: Tensor, x: Tensor, scale: float = 1.0) -> None:
    """Compute ``out += scale · x`` where x is finite, and leave the other elements of ``out``.

    Args:
        out: float32, shape ``(n,)``.
        x: Any floating dtype, shape ``(n,)``.
        scale: Factor of x.
    """
    size = reference.AT_ONCE if out.device.type == "cpu" else max(1, out.numel())
    for begin in range(0, out.numel(), size):
        part = slice(begin, begin + size)
        out[part].add_(x[part].float().nan_to_num(0.0, 0.0, 0.0), alpha=scale)


def subtract_unless(kept: Tensor, out: Tensor, x: Tensor) -> None:
    """Compute ``out -= x`` where x is finite; leave ``out`` as it is where ``kept`` is true.

    A GPU that finds ``kept`` true reads nothing else, so that a step which may have to be undone costs hardly anything.

    Args:
        kept: bool of shape ``()``, beside ``out``. The host does not read it.
        out: float32, shape ``(n,)``.
        x: Any floating dtype, shape ``(n,)``.
    """
    if x.dtype in _FLOATS and backend.on_gpu(kept, out, x):
        from gravac.kernels.cuda.linalg import subtract_unless as on_gpu

        on_gpu(kept, out, x.detach())
        return
    torch.where(kept, out, out - x.float().nan_to_num(0.0, 0.0, 0.0), out=out)


def finite_or_zero(x: Tensor) -> Tensor:
    """Return a copy of x in which elements that are not finite are 0.

    It is for what a rank counts as sent if that depends on other ranks: a step that is not finite on one of them will
    be undone, and adding NaN could not be.
    """
    return x.nan_to_num(0.0, 0.0, 0.0)


def scatter_add(out: Tensor, indices: Tensor, values: Tensor, scale: float = 1.0) -> None:
    """Add a sparse vector to a dense one: ``out[indices] += scale · values``. Call it for each rank's payload, in
    order.

    The product is rounded before the sum. An index that occurs twice counts twice. On a GPU, sums below 2^-126 become
    0, and an index that occurs twice adds up in any order.

    Args:
        out: Shape ``(n,)``.
        indices: int32 or int64, shape ``(k,)``.
        values: Any floating dtype, shape ``(k,)``.
        scale: Factor of the values.

    Raises:
        ValueError: The shapes do not fit.
        IndexError: An index is outside 0..n-1; nothing was added. On a device nothing is raised, and out[0] becomes
            NaN.
    """
    if indices.shape != values.shape or indices.dim() != 1 or out.dim() != 1:
        raise ValueError(
            f"out has shape {tuple(out.shape)}, indices {tuple(indices.shape)}, values {tuple(values.shape)}: out must "
            "be flat, and each value needs its place"
        )
    host, single = backend.host, out.dtype == torch.float32
    if (
        host is not None
        and single
        and indices.dtype == torch.int32
        and out.is_cpu
        and indices.is_cpu
        and values.is_cpu
        and out.is_contiguous()
        and indices.is_contiguous()
        and values.is_contiguous()
    ):
        values, count = values.float(), indices.numel()
        done = host.scatter_add(
            out.data_ptr(), indices.data_ptr(), values.data_ptr(), scale, count, out.numel()
        )
    elif single and out.numel() and backend.on_gpu(out, indices, values):
        from gravac.kernels.cuda.linalg import scatter_add as on_gpu

        on_gpu(out.detach(), indices, values.detach(), scale)
        return
    else:
        done = reference.scatter_add(out, indices, values, scale)
    if not done:
        low, high = int(indices.min()), int(indices.max())
        raise IndexError(
            f"indices reach from {low} to {high}, outside 0..{out.numel() - 1}: the payload is damaged or of another "
            "bucket"
        )


def inner_at(x: Tensor, indices: Tensor, values: Tensor) -> Scalar:
    """Return Σ values · x[indices], computed in float64: the inner product with a tensor that is zero elsewhere.

    Args:
        x: Shape ``(n,)``.
        indices: int32 or int64, inside 0..n-1, shape ``(k,)``.
        values: Shape ``(k,)``.
    """
    host = backend.host
    if (
        host is not None
        and indices.dtype == torch.int32
        and x.dtype == torch.float32
        and x.is_cpu
        and indices.is_cpu
        and values.is_cpu
        and x.is_contiguous()
        and indices.is_contiguous()
        and values.is_contiguous()
    ):
        values, count = values.float(), indices.numel()
        return host.inner_at(  # type: ignore[no-any-return]
            x.data_ptr(), indices.data_ptr(), values.data_ptr(), count, x.numel()
        )
    return scalar(torch.dot(x.index_select(0, indices).double(), values.double()))


def alignment(energy: Scalar, inner: Scalar) -> Scalar:
    """Return the energy of x along c, ⟨c, x⟩² / ‖c‖²; ``energy`` itself if that is zero or NaN.

    Args:
        energy: ‖c‖².
        inner: ⟨c, x⟩.
    """
    if isinstance(energy, Tensor):
        return torch.where(energy > 0.0, inner**2 / energy, energy)
    return inner**2 / energy if energy > 0.0 else energy
