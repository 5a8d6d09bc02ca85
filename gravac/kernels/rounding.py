"""What quantizers are made of: blocks, their scales, and stochastic rounding."""

from typing import Literal

import torch
from torch import Tensor

from gravac.kernels import backend, reference
from gravac.kernels.packing import check_room, pack, unpack
from gravac.kernels.randomness import noise, stream

Norm = Literal["l2", "linf"]


def stochastic_round(a: Tensor, seed: int) -> Tensor:
    """Round at random: ``floor(a)``, plus one with probability ``a - floor(a)``, so the mean is ``a``.

    Args:
        a: Any shape, float32.
        seed: 63-bit seed of the noise.

    Returns:
        Shape and dtype of ``a``.
    """
    low = a.floor()
    return low + (noise(a.numel(), seed, a.device).view_as(a) < a - low)


def round_bfloat16(x: Tensor, out: Tensor, seed: int | None) -> None:
    """Round to bfloat16: at random to one of the two neighbors, so that the mean is ``x``, or to the nearest.

    Args:
        x: float32, shape ``(n,)``.
        out: bfloat16, shape ``(n,)``.
        seed: 63-bit seed of the noise; None rounds to the nearest.
    """
    if seed is None:
        out.copy_(x)
        return
    size = reference.AT_ONCE if x.device.type == "cpu" else max(1, x.numel())
    for number, begin in enumerate(range(0, x.numel(), size)):
        part = x[begin : begin + size]
        # Adding a random number below 2^16 carries into the 16 bits that stay, with the probability of what is cut off.
        bits = part.view(torch.int32) + (noise(part.numel(), seed ^ number, x.device) * 65536.0).int()
        rounded = (bits & -65536).view(torch.float32)
        out[begin : begin + size] = torch.where(part.isfinite() & rounded.isfinite(), rounded, part)


def blocked(x: Tensor, size: int) -> Tensor:
    """Return ``x`` as float32 rows of ``size`` elements, the last padded with zeros; one row if ``size`` >= n."""
    size = min(size, max(1, x.numel()))
    short = -x.numel() % size
    x = x.float()
    return (torch.nn.functional.pad(x, (0, short)) if short else x).reshape(-1, size)


def row_scales(rows: Tensor, norm: Norm) -> Tensor:
    """Return a norm of each row, never below its largest magnitude, and NaN where the row has one.

    The l2 norm is computed relative to the largest magnitude, so it neither vanishes for tiny values nor overflows
    before the largest float32.

    Args:
        rows: Shape ``(rows, size)``.
        norm: ``l2`` or ``linf``.

    Returns:
        Shape ``(rows,)``.
    """
    top = rows.abs().amax(1)
    if norm == "linf":
        return top
    safe = torch.where(top > 0, top, 1.0)
    length = (rows / safe.unsqueeze(1)).square().sum(1).sqrt() * top
    return torch.where(top.isfinite(), length.clamp(max=torch.finfo(torch.float32).max), top)


def relative(rows: Tensor, scales: Tensor) -> Tensor:
    """Return ``rows / scales``, in [-1, 1]; 0 where the scale is zero or not finite."""
    safe = torch.where((scales > 0) & scales.isfinite(), scales, torch.inf).unsqueeze(1)
    return (rows / safe).clamp(-1.0, 1.0).nan_to_num(0.0)


def quantize(x: Tensor, block: int, bits: int, seed: int) -> tuple[Tensor, Tensor]:
    """Round each block to levels of its largest magnitude, at random and unbiased (QSGD, Alistarh et al. 2017, §3.1).

    Levels are -s to s = 2^(bits-1) - 1; codes are level + s. The draws are ``noise(n, seed)``.

    Args:
        x: Shape ``(n,)``.
        block: Elements that share a scale.
        bits: 2 to 8.
        seed: 63-bit seed of the noise.

    Returns:
        Scales, float32 of shape ``(ceil(n / block),)``, NaN or infinite where an element is; and the packed codes,
        uint8 of shape ``(packed_bytes(n, bits),)``.
    """
    steps = _steps(bits)
    block = min(block, max(1, x.numel()))
    x = x.detach().float().flatten()
    if backend.compiled(x):
        blocks = -(-x.numel() // block)
        scales, codes = (
            torch.empty(blocks, dtype=torch.float32, device="cpu"),
            torch.empty(x.numel(), dtype=torch.uint8, device="cpu"),
        )
        given = x.data_ptr(), block, steps, stream(seed)
        backend.host.quantize(*given, scales.data_ptr(), codes.data_ptr(), blocks, x.numel())
        return scales, pack(codes, bits)
    if backend.on_gpu(x):
        from gravac.kernels.cuda.rounding import quantize as on_gpu

        scales, codes = on_gpu(x, block, steps, stream(seed))
        return scales, pack(codes, bits)
    rows = blocked(x, block)
    scales = row_scales(rows, "linf")
    levels = stochastic_round(relative(rows, scales) * steps, seed)
    return scales, pack(levels.flatten()[: x.numel()] + steps, bits)


def dequantize(scales: Tensor, packed: Tensor, numel: int, block: int, bits: int) -> Tensor:
    """Return the values that ``quantize`` stands for, float32 of shape ``(numel,)``.

    Raises:
        ValueError: The scales or codes do not fit ``numel``.
    """
    steps = _steps(bits)
    block = min(block, max(1, numel))
    check_room(packed, numel, bits)
    if scales.numel() != -(-numel // block):
        raise ValueError(
            f"{scales.numel()} scales given, {numel} elements in blocks of {block} have another number"
        )
    if backend.on_gpu(scales, packed):
        from gravac.kernels.cuda.rounding import dequantize as on_gpu

        return on_gpu(scales, packed, numel, block, bits)
    codes = unpack(packed, numel, bits)
    if scales.dtype == torch.float32 and backend.compiled(scales, codes):
        out, given = (
            torch.empty(numel, dtype=torch.float32, device="cpu"),
            (scales.data_ptr(), codes.data_ptr()),
        )
        backend.host.dequantize(*given, block, steps, out.data_ptr(), scales.numel(), numel)
        return out
    share = (codes.float() - steps) / steps
    return share * torch.repeat_interleave(scales, block)[:numel]


def _steps(bits: int) -> int:
    if not 2 <= bits <= 8:
        raise ValueError(f"bits={bits} must be between 2 and 8")
    return (1 << (bits - 1)) - 1
