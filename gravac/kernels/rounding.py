"""Blocks, their scales, and stochastic rounding: what quantisers are made of."""

from typing import Literal

import torch
from torch import Tensor

Norm = Literal["l2", "linf"]


def noise(count: int, seed: int, device: torch.device) -> Tensor:
    """``count`` uniform numbers in [0, 1), float32, the same for the same seed on the same kind of device."""
    return torch.rand(count, generator=torch.Generator(device).manual_seed(seed), device=device)


def stochastic_round(a: Tensor, seed: int) -> Tensor:
    """``floor(a)`` plus one with probability ``a - floor(a)``: its mean is ``a``. Same shape and dtype."""
    low = a.floor()
    return low + (noise(a.numel(), seed, a.device).view_as(a) < a - low)


def blocked(x: Tensor, size: int) -> Tensor:
    """``x`` as float32 rows of ``size`` elements, the last one filled up with zeros; one row if ``size`` >= n."""
    size = min(size, x.numel())
    short = -x.numel() % size
    x = x.float()
    return (torch.nn.functional.pad(x, (0, short)) if short else x).reshape(-1, size)


def row_scales(rows: Tensor, norm: Norm) -> Tensor:
    """A norm of each row, shape ``(rows,)``, never below the row's largest magnitude, NaN where the row has one.

    The l2 norm is taken relative to the largest magnitude, so it neither vanishes for tiny values nor overflows before
    the largest float32.
    """
    top = rows.abs().amax(1)
    if norm == "linf":
        return top
    safe = torch.where(top > 0, top, 1.0)
    length = (rows / safe.unsqueeze(1)).square().sum(1).sqrt() * top
    return torch.where(top.isfinite(), length.clamp(max=torch.finfo(torch.float32).max), top)


def relative(rows: Tensor, scales: Tensor) -> Tensor:
    """``rows / scales`` with 0 for rows of scale zero; in [-1, 1] where the scale is finite, else 0."""
    safe = torch.where((scales > 0) & scales.isfinite(), scales, torch.inf).unsqueeze(1)
    return (rows / safe).clamp(-1.0, 1.0).nan_to_num(0.0)
