"""Hot loops in plain torch: any device, no compiler, the results other back ends must match."""

import math

import torch
from torch import Tensor

_COARSE_SHIFT = 20
"""Bits of a float32 below the coarse bin: sign, 8 exponent and 3 mantissa bits stay, 2,048 bins."""


def select_top(x: Tensor, k: int) -> Tensor:
    """Indices (int64, ascending, shape ``(k,)``) of the ``k`` largest ``|x|`` of a 1-D tensor.

    Exactly ``k``, deterministic: among equal magnitudes the lowest index wins. NaN counts as larger than
    infinity, so it is never dropped. A coarse histogram of the float's bit pattern finds the few elements that
    can be chosen; only those are ranked (``torch.topk`` over everything is about four times slower on a CPU).
    """
    n = x.numel()
    if not 0 < k <= n:
        raise ValueError(f"k={k} is outside 1..{n}, the number of elements")
    if k == n:
        return torch.arange(n, device=x.device)
    # A non-negative float32 orders like its bit pattern, NaN last.
    bits = x.float().abs().view(torch.int32)
    counts = torch.bincount(bits >> _COARSE_SHIFT, minlength=2048)
    at_least = counts.flip(0).cumsum(0).flip(0)  # elements in this bin or above
    boundary = int((at_least >= k).nonzero()[-1])
    candidates = (bits >= (boundary << _COARSE_SHIFT)).nonzero().squeeze(1)
    if candidates.numel() == k:
        return candidates
    ranked = bits[candidates]
    threshold = ranked.kthvalue(ranked.numel() - k + 1).values
    above = ranked > threshold
    ties = (ranked == threshold).nonzero().squeeze(1)[: k - int(above.sum())]
    above[ties] = True
    return candidates[above]


def energy(x: Tensor) -> float:
    """Squared L2 norm of a 1-D tensor. Non-finite only if an element is, zero only if all are (sums that overflow or
    fall where float32 gets coarse are redone in float64)."""
    return inner(x, x)


def inner(x: Tensor, y: Tensor) -> float:
    """Inner product of two 1-D tensors of equal length; see ``energy`` about range."""
    value = float(torch.dot(x.float(), y.float()))
    if 1e-30 < abs(value) < math.inf:
        return value
    return float(torch.dot(x.double(), y.double()))
