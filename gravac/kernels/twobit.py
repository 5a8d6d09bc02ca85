"""Blocks rounded to two magnitudes with a sign: two bits an element."""

import torch
from torch import Tensor

from gravac.kernels import backend
from gravac.kernels.packing import check_room, pack, unpack
from gravac.kernels.rounding import blocked, relative, row_scales

_FINE = float(1 << 23)
"""Magnitudes are summed as whole multiples of the block's largest over this, so that all backends get the same sums."""
_LARGEST = torch.finfo(torch.bfloat16).max


def quantize_two_bits(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Round each element to its sign times one of two magnitudes of its block.

    A block's magnitudes are split at their mean, then midway between the means of the two parts.

    Args:
        x: Shape ``(n,)``.
        block: Elements that share the two magnitudes.

    Returns:
        The lower and the upper magnitude of each block, bfloat16 of shape ``(2 * ceil(n / block),)``, not finite where
        an element is not; and the packed codes: 1 for elements >= 0, and 2 for those with the upper magnitude.
    """
    x = x.detach().float().flatten()
    numel = x.numel()
    block = min(block, max(1, numel))
    if backend.compiled(x):
        means = torch.empty(2 * -(-numel // block), dtype=torch.bfloat16, device="cpu")
        codes, sizes = (
            torch.empty(numel, dtype=torch.uint8, device="cpu"),
            torch.empty(block, dtype=torch.float32, device="cpu"),
        )
        given = x.data_ptr(), block, means.data_ptr(), codes.data_ptr(), sizes.data_ptr()
        backend.host.quantize_two_bits(*given, block, means.numel(), numel)
        return means, pack(codes, 2)
    rows = blocked(x, block)
    top = row_scales(rows, "linf")
    sizes = relative(rows, top).abs()
    inside = torch.ones_like(sizes, dtype=torch.bool)
    inside.view(-1)[numel:] = False
    low, _, _ = _parts(sizes, inside, torch.full_like(top, torch.inf))
    low, high, _ = _parts(sizes, inside, low)
    low, high, large = _parts(sizes, inside, (low + high) / 2)
    found = torch.stack((low, high), 1) * top.unsqueeze(1)
    found = torch.where(top.isfinite().unsqueeze(1), found.clamp_max(_LARGEST), top.unsqueeze(1))
    codes = ((rows >= 0).to(torch.uint8) + 2 * large.to(torch.uint8)).flatten()[:numel]
    return found.flatten().to(torch.bfloat16), pack(codes, 2)


def dequantize_two_bits(means: Tensor, packed: Tensor, numel: int, block: int) -> Tensor:
    """Return the values that ``quantize_two_bits`` stands for, float32 of shape ``(numel,)``.

    Raises:
        ValueError: The magnitudes or codes do not fit ``numel``.
    """
    block = min(block, max(1, numel))
    check_room(packed, numel, 2)
    if means.numel() != 2 * -(-numel // block):
        raise ValueError(
            f"{means.numel()} magnitudes given, {numel} elements in blocks of {block} have others"
        )
    if means.dtype == torch.bfloat16 and backend.compiled(means, packed):
        out = torch.empty(numel, dtype=torch.float32, device="cpu")
        given = means.data_ptr(), packed.data_ptr(), block, out.data_ptr()
        backend.host.dequantize_two_bits(*given, means.numel(), numel, packed.numel())
        return out
    codes = unpack(packed, numel, 2)
    low, high = (
        torch.repeat_interleave(part.contiguous(), block)[:numel]
        for part in means.float().view(-1, 2).unbind(1)
    )
    sizes = torch.where(codes >= 2, high, low)
    return torch.where(codes % 2 == 1, sizes, -sizes)


def _parts(sizes: Tensor, inside: Tensor, split: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the means of the elements up to ``split`` and above it, 0 of none, and which elements are above it."""
    large, fine = sizes > split.unsqueeze(1), (sizes * _FINE).int().long()
    means = [
        ((fine * part).sum(1).double() / part.sum(1).clamp_min(1) / _FINE).float()
        for part in (inside & ~large, large)
    ]
    return means[0], means[1], large
