"""Rounding at random with draws that the decoder makes again and subtracts."""

import torch
from torch import Tensor

from gravac.kernels import backend
from gravac.kernels.nearest import block_of, block_size, dither, grid_of, shares
from gravac.kernels.randomness import noise, stream
from gravac.kernels.rounding import blocked

_FINE = 256
"""Fractions of a level are whole multiples of 1/256 where errors are compared: sums are then exact."""


def dither_subtractive(x: Tensor, block: int, levels: int, spread: float, seed: int) -> tuple[Tensor, Tensor]:
    """Round at random as ``dither`` does, and mark the blocks where ``dequantize_subtractive`` subtracts the draws.

    An element at the fraction f of the way between two levels errs by ``f (1 - f) d²`` in expectation, with d the
    spacing. If the draw is subtracted again it errs by ``d² / 12``, whatever f is: less for most elements, more for
    those close to a level. A block is marked where its sum is less and no element is zero: zeros stay zeros then.

    Args:
        x: Shape ``(n,)``.
        block: Elements that share a spacing.
        levels: Number of levels.
        spread: The spacing, as a multiple of that of ``quantize_nearest``.
        seed: 63-bit seed of the draws.

    Returns:
        Spacings and codes as those of ``dither``; the spacings of marked blocks are negative.

    Raises:
        ValueError: ``dither`` refuses the arguments.
    """
    spacings, codes = dither(x, block, levels, spread, seed)
    block, steps = block_size(block, x.numel()), grid_of(levels).steps
    x = x.detach().float().flatten()
    if backend.compiled(x):
        wide = spacings.float()
        backend.host.mark_subtractive(x.data_ptr(), block, steps, wide.data_ptr(), wide.numel(), x.numel())
        return wide.to(torch.bfloat16), codes
    rows = blocked(x, block)
    share = shares(rows, spacings, steps)
    fraction = ((share - share.floor()) * _FINE).int()
    total = (fraction * (_FINE - fraction)).sum(1)  # padding counts 0
    sizes = torch.full_like(total, block)
    sizes[-1:] -= rows.numel() - x.numel()
    less = (
        (12 * total > sizes * _FINE**2)
        & (rows.count_nonzero(1) == sizes)
        & ((steps + 1) * spacings.float()).isfinite()
    )
    return torch.where(less, -spacings, spacings), codes


def dequantize_subtractive(spacings: Tensor, codes: Tensor, block: int, levels: int, seed: int) -> Tensor:
    """Return the values that ``dither_subtractive`` stands for, float32 of shape ``(n,)``.

    Args:
        spacings: The spacings that it returned.
        codes: The codes that it returned.
        block: The value that it was given.
        levels: The value that it was given.
        seed: The value that it was given. Another one would subtract other draws.

    Raises:
        ValueError: There are more or fewer spacings than blocks.
    """
    numel, steps = codes.numel(), grid_of(levels).steps
    block = block_of(spacings, numel, block)
    wide = spacings.float()
    if codes.dtype == torch.uint8 and backend.compiled(wide, codes):
        out = torch.empty(numel, dtype=torch.float32, device="cpu")
        given = wide.data_ptr(), codes.data_ptr(), block, steps, stream(seed), out.data_ptr()
        backend.host.dequantize_subtractive(*given, wide.numel(), numel)
        return out
    each = torch.repeat_interleave(wide, block)[:numel]
    off = torch.where(each < 0, noise(numel, seed, codes.device) - 0.5, 0.0)
    return (codes.float() - steps + off) * torch.where(each < 0, -each, each)
