"""Blocks rounded to a few equally spaced levels: to the nearest, with the spacing that loses least, or at random."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gravac.kernels import backend
from gravac.kernels.packing import DIGITS, word_count
from gravac.kernels.randomness import noise, stream
from gravac.kernels.rounding import blocked

FINE = 4095
"""Largest whole number that a magnitude of a block becomes while a spacing is searched. So sums are exact, and
all backends choose the same spacing."""
MOST_BLOCK = 16_384
"""Most elements of a block, so that those sums fit 32 bits."""
SHIFT = 20
"""Bits after the point of the factors that turn those whole numbers into levels."""

_NO_LIMIT = 2.0
"""Above any spacing, since the best one is at most the largest magnitude."""


class Grid(NamedTuple):
    """The levels of a block and the spacings that are tried for it."""

    steps: int
    """Levels on each side of zero."""
    base: int
    """Base of the digits on the wire."""
    reaches: tuple[float, ...]
    """Outermost level of each spacing tried, as a share of the largest magnitude."""

    @property
    def bits(self) -> float:
        """Bits per element on the wire, without scales."""
        return 32 / DIGITS[self.base]

    @property
    def factors(self) -> tuple[int, ...]:
        """``1 / spacing`` of each reach, as whole multiples of ``2^-SHIFT``."""
        return tuple(round((1 << SHIFT) * self.steps / (FINE * reach)) for reach in self.reaches)


GRIDS = {
    39: Grid(19, 39, (1.0, 0.98, 0.96)),
    15: Grid(7, 16, (1.0, 0.9, 0.8)),
    7: Grid(3, 7, (0.9, 0.75, 0.6)),
    5: Grid(2, 5, (0.8, 0.65, 0.5)),
    3: Grid(1, 3, (0.8, 0.6, 0.45)),
    2: Grid(1, 2, ()),
}
"""Grids by the number of levels. On normal, Laplace and Student distributed blocks of 64, three spacings come within
3 % of the error of the best of all. Two levels have no zero: they are the signs."""


def quantize_nearest(x: Tensor, block: int, levels: int, sums: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Round each element to the nearest of its block's levels, ``-s·d, …, -d, 0, d, …, s·d``; two levels: ``±d``.

    To find the spacing d, three spacings are tried that clip the block at different shares of its largest magnitude.
    Each gives levels, to which a spacing is fitted by least squares, and d is the best of these three. With two levels,
    d is the mean magnitude.

    Args:
        x: Shape ``(n,)``.
        block: Elements that share a spacing, at most 16,384.
        levels: 39, 15, 7, 5, 3 or 2.
        sums: float64 of shape ``(2,)``, on the host. If the kernel is compiled, ‖decoded‖² and ⟨decoded, x⟩ are added.

    Returns:
        Spacings, bfloat16 of shape ``(ceil(n / block),)``, not finite where an element is not; and codes, uint8 of
        shape ``(n,)`` below the base of the grid.

    Raises:
        ValueError: There is no grid of so many levels, or the block is too large.
    """
    grid = grid_of(levels)
    block = block_size(block, x.numel())
    x = x.detach().float().flatten()
    if backend.compiled(x):
        codes = torch.empty(x.numel(), dtype=torch.uint8, device="cpu")
        return _compiled(x, block, grid, 1.0, _NO_LIMIT, codes, sums), codes
    rows = blocked(x, block)
    spacings = _spacings(rows, x.numel(), grid)
    if not grid.reaches:
        codes = (rows >= 0).to(torch.uint8)
    else:
        codes = (shares(rows, spacings, grid.steps).round() + grid.steps).to(torch.uint8)
    return spacings, codes.flatten()[: x.numel()]


def dither(x: Tensor, block: int, levels: int, spread: float, seed: int) -> tuple[Tensor, Tensor]:
    """Round each element at random to one of the two levels around it, so that its mean is the element.

    Elements beyond the outermost level become that level.

    Args:
        x: Shape ``(n,)``.
        block: Elements that share a spacing, at most 16,384.
        levels: 39, 15, 7, 5 or 3.
        spread: The spacing, as a multiple of that of ``quantize_nearest``; but never wider than clips no element.
        seed: 63-bit seed. The draws are ``noise(n, seed)``.

    Returns:
        Spacings and codes as those of ``quantize_nearest``, for ``dequantize_nearest``.

    Raises:
        ValueError: There is no grid of so many levels with a zero, or the block is too large.
    """
    grid = grid_of(levels)
    if not grid.reaches:
        raise ValueError(
            f"levels={levels}: rounding at random needs a level at zero: 39, 15, 7, 5 or 3 levels"
        )
    block = block_size(block, x.numel())
    x = x.detach().float().flatten()
    if backend.compiled(x):
        numel = x.numel()
        codes = torch.empty(numel, dtype=torch.uint8, device="cpu")
        nothing = codes[:0]  # not the nearest codes
        spacings = _compiled(x, block, grid, spread, _widest(grid), nothing, None)
        wide, given = spacings.float(), (x.data_ptr(), block, grid.steps, stream(seed))
        backend.host.clip_and_round(*given, wide.data_ptr(), codes.data_ptr(), wide.numel(), numel)
        return spacings, codes
    rows = blocked(x, block)
    spacings = _spacings(rows, x.numel(), grid, spread, _widest(grid))
    share = shares(rows, spacings, grid.steps).flatten()[: x.numel()]
    low = share.floor()
    codes = (low + (noise(x.numel(), seed, x.device) < share - low) + grid.steps).to(torch.uint8)
    return spacings, codes


def dequantize_nearest(spacings: Tensor, codes: Tensor, block: int, levels: int) -> Tensor:
    """Return the values that ``quantize_nearest`` stands for, float32 of shape ``(n,)``.

    Raises:
        ValueError: There are more or fewer spacings than blocks.
    """
    out = torch.zeros(codes.numel(), dtype=torch.float32, device=codes.device)
    add_nearest(out, spacings, codes, block, levels)
    return out


def add_nearest(
    out: Tensor, spacings: Tensor, codes: Tensor, block: int, levels: int, scale: float = 1.0
) -> None:
    """Add the values that ``quantize_nearest`` stands for: ``out.add_(values, alpha=scale)``.

    Raises:
        ValueError: There are more or fewer spacings than blocks.
    """
    grid, numel = grid_of(levels), codes.numel()
    block = block_of(spacings, numel, block)
    factor, offset = (1, grid.steps) if grid.reaches else (2, 1)
    kinds = out.dtype, spacings.dtype, codes.dtype, out.numel()
    if kinds == (torch.float32, torch.bfloat16, torch.uint8, numel) and backend.compiled(
        out, spacings, codes
    ):
        given = spacings.data_ptr(), codes.data_ptr(), block, factor, offset, scale, out.data_ptr()
        backend.host.add_nearest(*given, spacings.numel(), numel)
        return
    values = (codes.float() * factor - offset) * torch.repeat_interleave(spacings.float(), block)[:numel]
    out.add_(values.to(out.dtype), alpha=scale)


def nearest_sizes(numel: int, block: int, levels: int) -> tuple[int, int]:
    """Return how many spacings ``numel`` elements have, and how many words ``pack_digits`` makes of their codes."""
    return math.ceil(numel / block_size(block, numel)), word_count(numel, grid_of(levels).base)


def shares(rows: Tensor, spacings: Tensor, steps: int) -> Tensor:
    """Return the elements in units of their row's spacing, clipped to the outermost levels.

    They are 0 in rows whose spacing is 0 or not finite.
    """
    wide = spacings.float()
    safe = torch.where((wide > 0) & wide.isfinite(), wide, torch.inf).unsqueeze(1)
    return (rows / safe).nan_to_num(0.0).clamp(-steps, steps)


def _compiled(
    x: Tensor, block: int, grid: Grid, spread: float, widest: float, codes: Tensor, sums: Tensor | None
) -> Tensor:
    """Return the spacings, as ``_spacings`` does; write the nearest codes where ``codes`` is not empty."""
    blocks, factors = -(-x.numel() // block), torch.tensor(grid.factors, dtype=torch.int32, device="cpu")
    room = max(1024, -(-block // 32) * 32)
    spacings, spare = (
        torch.empty(blocks, dtype=torch.bfloat16, device="cpu"),
        torch.empty(room, dtype=torch.int16, device="cpu"),
    )
    if sums is None:
        sums = torch.zeros(2, dtype=torch.float64, device="cpu")
    given = x.data_ptr(), block, grid.steps, factors.data_ptr(), spread, widest
    found = spacings.data_ptr(), codes.data_ptr(), spare.data_ptr(), sums.data_ptr()
    backend.host.quantize_nearest(*given, *found, blocks, codes.numel(), factors.numel(), x.numel(), room)
    return spacings


def _widest(grid: Grid) -> float:
    """Return the widest spacing that is of use, as a share of the largest magnitude."""
    return (1 + 2**-8) / grid.steps  # a little wider, as bfloat16 may round it down


def _spacings(rows: Tensor, numel: int, grid: Grid, spread: float = 1.0, widest: float = _NO_LIMIT) -> Tensor:
    """Return the best spacing of each row times ``spread``, at most ``widest`` times its largest magnitude.

    They are bfloat16. Only the last row may be padded.
    """
    top = rows.abs().amax(1)
    safe = torch.where((top > 0) & top.isfinite(), top, torch.inf).unsqueeze(1)
    fine = ((rows.abs() / safe).nan_to_num(0.0) * FINE + 0.5).int()
    if grid.reaches:
        ratio, best = torch.zeros_like(top), torch.full_like(top, -1.0)
        for factor in grid.factors:
            level = ((fine * factor + (1 << SHIFT >> 1)) >> SHIFT).clamp_max(grid.steps)
            product, square = (level * fine).sum(1).float(), (level * level).sum(1).clamp_min(1).float()
            # The part of the block's energy that this spacing keeps.
            kept = product * product / square
            ratio, best = torch.where(kept > best, product / square, ratio), torch.maximum(kept, best)
    else:
        counts = torch.full_like(top, rows.shape[1])
        counts[-1:] -= rows.numel() - numel
        ratio = fine.sum(1).float() / counts
    # The outermost level, too, must be finite.
    spacing = torch.minimum(ratio / FINE * top * spread, top * widest).clamp_max(
        torch.finfo(torch.bfloat16).max / grid.steps
    )
    return torch.where(top.isfinite(), spacing, top).to(torch.bfloat16)


def grid_of(levels: int) -> Grid:
    """Return the grid of a number of levels.

    Raises:
        ValueError: There is none.
    """
    if levels not in GRIDS:
        raise ValueError(f"levels={levels} must be one of {', '.join(map(str, GRIDS))}")
    return GRIDS[levels]


def block_size(block: int, numel: int) -> int:
    """Return the elements of a block: all of them, if there are fewer.

    Raises:
        ValueError: The block is empty or too large.
    """
    if not 1 <= block <= MOST_BLOCK:
        raise ValueError(f"block={block} must be between 1 and {MOST_BLOCK} elements")
    return min(block, max(1, numel))


def block_of(spacings: Tensor, numel: int, block: int) -> int:
    """Return the elements of a block that has one of these spacings.

    Raises:
        ValueError: As ``block_size``, or there are more or fewer spacings than blocks.
    """
    block = block_size(block, numel)
    if spacings.numel() != -(-numel // block):
        raise ValueError(
            f"{spacings.numel()} spacings given, {numel} elements in blocks of {block} have another number"
        )
    return block
