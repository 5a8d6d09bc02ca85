"""The histogram of a gradient's magnitudes in one pass: elements and energy per bin."""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from gravac.kernels import backend, reference
from gravac.kernels.backend import Scalar, on_device, scalar
from gravac.kernels.reference import BINS

NONFINITE = 4080
"""First bin of infinities and NaN."""
_FEW = 1 << 15
"""Up to this many elements torch counts faster than compiled code, which clears a larger table first."""
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Tally:
    """The histogram of a tensor's magnitudes.

    Bin b holds the float32 numbers whose bits without the sign, shifted right by 19, are b: 16 bins per octave, in
    ascending order. Bin 0 begins with zero; bins from 4080 on are not finite. The tensors lie where the gradient does.
    On a device its numbers are tensors of shape ``()``; reading one waits until it has been counted.
    """

    counts: Tensor
    """Elements, int64 of shape ``(4096,)``."""
    energies: Tensor
    """Sum of the squares of each bin, float64 of shape ``(4096,)``; 0 in bins that are not finite. Sums are exact, and
    rounded once. Triton's kernels round each square to 24 bits first, and take those of bin 0, below 2^-260, as 0."""
    products: Tensor | None = None
    """‖g‖² and ⟨e, g⟩ of the residual before the step, float64 of shape ``(2,)``; None if they were not asked for."""

    @property
    def gradient_sq(self) -> Scalar | None:
        """‖g‖²; None if it was not asked for."""
        return None if self.products is None else scalar(self.products[0])

    @property
    def residual_dot_gradient(self) -> Scalar | None:
        """⟨e, g⟩ of the residual before the step; None if it was not asked for."""
        return None if self.products is None else scalar(self.products[1])

    @property
    def nonfinite(self) -> int:
        """Elements that are infinite or NaN. It is read, on a device too."""
        return int(self.counts[NONFINITE:].sum())

    @property
    def energy(self) -> Scalar:
        """Sum of all squares, ‖p‖²; infinite if an element is not finite."""
        if on_device(self.counts):
            return torch.where(self.counts[NONFINITE:].sum() > 0, math.inf, self.energies.sum())
        return math.inf if self.nonfinite else float(self.energies.sum())


def tally(
    gradient: Tensor,
    residual: Tensor | None = None,
    *,
    share: float = 1.0,
    out: Tensor | None = None,
    sums: bool = False,
) -> Tally:
    """Compute p = gradient + share · residual and count its magnitudes in the same pass.

    The product is rounded before the sum. Results are bit-equal on all backends, except ``products``, which are equal
    to rounding. If ``out`` is the residual itself, elements of the gradient that are not finite count as 0 in p, so
    that the residual survives them. Only ``products`` shows them then.

    Args:
        gradient: float32, bfloat16 or float16, shape ``(n,)``.
        residual: float32, shape ``(n,)``; None for none.
        share: Factor of the residual.
        out: float32 buffer for p, shape ``(n,)``. It may be the gradient or the residual. Without it and a residual,
            the gradient is counted as it is.
        sums: Whether to compute ‖g‖² and ⟨e, g⟩ in float64, too.

    Returns:
        The histogram.

    Raises:
        ValueError: Shapes or dtypes do not fit.
    """
    if out is None:
        if residual is not None:
            raise ValueError(
                "residual is given but out is not; pass a float32 buffer for gradient + residual"
            )
        out = gradient if gradient.dtype == torch.float32 else gradient.float()
    check_terms(gradient, residual, out)
    p = out.detach()
    if residual is not None and residual.data_ptr() == p.data_ptr() and p.numel():
        residual = p  # one object, so that backends see by ``is`` that the sum is in place
    given = (gradient, p, *(() if residual is None else (residual,)))
    ready = backend.compiled(*given)
    if not ready and gradient.dtype in _FLOATS and backend.on_gpu(*given):
        from gravac.kernels.cuda.tally import tally as on_gpu

        found = on_gpu(gradient.detach(), residual, share, p, sums)
        return Tally(found[0], found[1], found[2] if sums else None)
    run = _compiled if ready and gradient.dtype in _FLOATS else _torch
    table, products = run(gradient.detach(), residual, share, p, sums)
    return Tally(table[0], _energies(table), products if sums else None)


def count(x: Tensor) -> Tensor:
    """Return ``tally(x).counts`` of a float32 tensor of shape ``(n,)``, without energies where these cost extra."""
    if backend.on_gpu(x):
        return tally(x).counts
    if x.numel() > _FEW and backend.compiled(x):
        return _compiled(x.detach(), None, 1.0, x.detach(), False)[0][0]
    return reference.count(x.detach())


def check_terms(gradient: Tensor, residual: Tensor | None, out: Tensor) -> None:
    """Raise ValueError unless these tensors have one shape ``(n,)``, with residual and out float32."""
    if gradient.dim() != 1:
        raise ValueError(f"gradient has shape {tuple(gradient.shape)}; flatten it first")
    for name, tensor in (("residual", residual), ("out", out)):
        if tensor is not None and (tensor.shape != gradient.shape or tensor.dtype != torch.float32):
            raise ValueError(
                f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}; it must be float32 of the gradient's "
                f"shape {tuple(gradient.shape)}"
            )


def _torch(g: Tensor, e: Tensor | None, share: float, p: Tensor, sums: bool) -> tuple[Tensor, Tensor]:
    return reference.tally(p if g.data_ptr() == p.data_ptr() else g, e, share, p, sums)


def _compiled(g: Tensor, e: Tensor | None, share: float, p: Tensor, sums: bool) -> tuple[Tensor, Tensor]:
    table, spare = (
        torch.zeros(3, BINS, dtype=torch.int64, device="cpu"),
        torch.zeros(4 * BINS, dtype=torch.int64, device="cpu"),
    )
    lanes = torch.zeros(2 if sums else 0, 8, dtype=torch.float64, device="cpu")
    # A gradient in float16 that goes over the residual has no room for the whole of it in float32.
    size = reference.AT_ONCE if g.dtype != torch.float32 and e is p else max(1, p.numel())
    if g.dtype != torch.float32 and e is not p:
        g = p.copy_(g)
    for begin in range(0, p.numel(), size):
        part = slice(begin, begin + size)
        fresh, sum_, count = g[part].float(), p[part], p[part].numel()
        # Counted in place: no need to write it.
        counted = e is None and not sums and fresh.data_ptr() == sum_.data_ptr()
        old = None if e is None else e[part]
        given = fresh.data_ptr(), 0 if old is None else old.data_ptr(), share, sum_.data_ptr()
        sizes = 0 if counted else count, count, 0 if old is None else count, lanes.numel()
        backend.host.tally(*given, table.data_ptr(), lanes.data_ptr(), e is p, spare.data_ptr(), *sizes)
    return table, lanes.sum(1)


def _energies(table: Tensor) -> Tensor:
    """Return sums of squares from those of squared significands: times 4 to the power of the bin's exponent."""
    high, low = table[1] + (table[2] >> 24), table[2] & 0xFFFFFF
    return (high.double() * 2.0**24 + low.double()) * _scales(table.device)


@cache
def _scales(device: torch.device) -> Tensor:
    """Return 4 to the power of each bin's exponent, 0 for non-finite bins, float64 of shape ``(4096,)``.

    Products with powers of two are exact. They are made on the device, because a copy from the host would wait.
    """
    exponent = (torch.arange(BINS, device=device, dtype=torch.int64) >> 4).clamp(min=1) - 150
    scales = torch.ldexp(torch.ones(BINS, dtype=torch.float64, device=device), 2 * exponent)
    scales[NONFINITE:] = 0.0
    return scales
