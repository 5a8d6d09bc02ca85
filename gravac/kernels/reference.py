"""The kernels in plain torch: any device, no compiler. Other backends must match their results."""

import torch
from torch import Tensor

from gravac.kernels.backend import on_device

BINS = 4096
"""Bins of a float32's magnitude: its 8 bits of exponent and the highest 4 of its significand."""
COARSE_SHIFT = 19
"""Bits of a float32 below those of its bin."""
SUM_BLOCK = 4096
"""Elements whose squares a program on a GPU adds up."""
LEVEL_BINS = 256
"""Bins above a level, 64 for twice the magnitude."""
MEMBERS = 4
"""Buckets that share a launch on a GPU, at most."""
AT_ONCE = 1 << 18
"""Elements processed at a time on a CPU, so that intermediate results stay in its cache."""
STEP = 32
"""Age of one step."""
OLDEST = 2**15 - 1
"""Largest age: 1,023 steps."""
FINE, TO_STEPS, HALF_STEP = 256 * STEP, 5, STEP // 2
"""Up to the first age, each has a row of a table by age; beyond, each whole step, to which ages are rounded: ``age +
HALF_STEP >> TO_STEPS``."""
AGE_ROWS = FINE + ((OLDEST - FINE + HALF_STEP) >> TO_STEPS) + 1
"""Rows of such a table."""


def tally(g: Tensor, e: Tensor | None, share: float, p: Tensor, sums: bool) -> tuple[Tensor, Tensor]:
    """Write ``g + share·e`` to ``p`` (float32) and count it by magnitude.

    If ``e`` is ``p`` itself, elements of ``g`` that are not finite count as 0 in p. Squares are summed as integers.
    That is exact, so every order of adding gives the same energies, on every backend.

    Returns:
        By bin, the count and the sum of squared significands, split into multiples of 2^24 and the rest: int64 of shape
        ``(3, 4096)``; and g·g and e·g in float64, if ``sums``.
    """
    table = torch.zeros(3, BINS, dtype=torch.int64, device=p.device)
    products = torch.zeros(2, dtype=torch.float64, device=p.device)
    size = AT_ONCE if p.device.type == "cpu" else max(1, p.numel())
    for begin in range(0, p.numel(), size):
        part = slice(begin, begin + size)
        if sums:
            products[0] += g[part].double().square().sum()
        if e is not None:
            if sums:
                products[1] += (g[part].double() * e[part].double()).sum()
            fresh = g[part].float()
            torch.add(fresh.nan_to_num(0.0, 0.0, 0.0) if e is p else fresh, e[part] * share, out=p[part])
        elif g is not p:
            p[part] = g[part]
        magnitude = magnitudes(p[part])
        bins = magnitude >> COARSE_SHIFT
        significand = ((magnitude & 0x7FFFFF) | ((magnitude >= 0x800000).int() << 23)).long()
        square = significand * significand
        table[0].index_add_(0, bins, torch.ones_like(square))
        table[1].index_add_(0, bins, square >> 24)
        table[2].index_add_(0, bins, square & 0xFFFFFF)
    return table, products


def count(x: Tensor) -> Tensor:
    """Return the elements of a float32 tensor per bin, int64 of shape ``(4096,)``."""
    return torch.bincount(magnitudes(x) >> COARSE_SHIFT, minlength=BINS)


def top(x: Tensor, k: int, boundary: int, above: int, within: int) -> Tensor | None:
    """Return the positions (int64, ascending) of the ``k`` largest magnitudes of ``x``.

    Of them, ``above`` must lie in bins above ``boundary``, and the others among the at most ``within`` in that bin; the
    result is None otherwise. Among equal magnitudes the lowest index wins, and NaN counts as larger than infinity. Only
    the few candidates are ranked: ``torch.topk`` over everything is about four times slower on a CPU.
    """
    bits = magnitudes(x)
    candidates = (bits >= (boundary << COARSE_SHIFT)).nonzero().squeeze(1)
    ranked = bits[candidates]
    inside = candidates.numel() - above
    if not k - above <= inside <= within or int((ranked >> COARSE_SHIFT > boundary).sum()) != above:
        return None
    threshold = ranked.kthvalue(ranked.numel() - k + 1).values
    chosen = ranked > threshold
    ties = (ranked == threshold).nonzero().squeeze(1)[: k - int(chosen.sum())]
    chosen[ties] = True
    return candidates[chosen]


def top_of_chunks(x: Tensor, k: int, chunks: int) -> Tensor:
    """Return the positions (int64, ascending) of each chunk's largest magnitudes, ``k`` in all: see
    ``gravac.kernels.take_top_of_chunks``.
    """
    n, numbers = x.numel(), torch.arange(chunks + 1, device=x.device, dtype=torch.int64)
    ends, kept = numbers * n // chunks, numbers * k // chunks
    places = ends[:-1, None] + torch.arange(-(-n // chunks), device=x.device, dtype=torch.int64)
    outside = places >= ends[1:, None]
    sizes = magnitudes(x)[places.clamp_max(n - 1)].masked_fill(outside, -1)
    shares = kept.diff()
    ranked = sizes.topk(-(-k // chunks), dim=1).values
    edges = ranked.gather(1, shares[:, None] - 1)
    chosen, ties = sizes > edges, sizes == edges
    chosen |= ties & (ties.cumsum(1) <= shares[:, None] - chosen.sum(1, keepdim=True))
    return compact(places.flatten(), chosen.flatten(), k)


def scatter_add(out: Tensor, indices: Tensor, values: Tensor, scale: float) -> bool:
    """Compute ``out[indices] += scale·values``. Return False, with nothing done, if an index is outside.

    On a device nothing can be read, so ``out[0]`` becomes NaN then.
    """
    added, inside = (values.float() * scale).to(out.dtype), (indices >= 0) & (indices < out.numel())
    if on_device(out):
        indices, added = torch.where(inside, indices, 0), torch.where(inside, added, torch.nan)
    elif not bool(inside.all()):
        return False
    out.index_add_(0, indices, added)
    return True


def global_positions(rows: Tensor, owner: int, ranks: int, seed: int) -> Tensor:
    """Return the positions of these rows of an owner's share."""
    wide = rows.long()
    return (wide * ranks + (owner - _turns(wide, ranks, seed)) % ranks).int()


def _turns(rows: Tensor, ranks: int, seed: int) -> Tensor:
    mixed = ((rows + seed) & 0x7FFFFFFF) * 0x9E3779B1 & 0xFFFFFFFF
    return (mixed >> 16) * ranks >> 16


def magnitudes(x: Tensor) -> Tensor:
    """Return ``|x|`` of a float32 tensor as int32 that order as the numbers do, NaN last."""
    return x.view(torch.int32) & 0x7FFFFFFF


def compact(x: Tensor, chosen: Tensor, size: int, fill: int = 0) -> Tensor:
    """Return ``x[chosen]``, which is known to have ``size`` elements, so that nothing needs to be read.

    Args:
        x: Shape ``(n,)``.
        chosen: bool, shape ``(n,)``.
        size: How many elements to return: the first ones if more are chosen.
        fill: The value of the rest if fewer are chosen.
    """
    order = chosen.cumsum(0) - 1
    places = torch.where(chosen & (order < size), order, size)
    return x.new_full((size + 1,), fill).scatter_(0, places, x)[:size]


def chosen_places(chosen: Tensor, size: int, fill: int = 0) -> Tensor:
    """Return the positions of the ``size`` chosen elements, int64, ascending; see ``compact``."""
    return compact(torch.arange(chosen.numel(), device=chosen.device, dtype=torch.int64), chosen, size, fill)


def largest(x: Tensor, k: int) -> Tensor:
    """Return the positions (int64, ascending) of the ``k`` largest ``|x|``, the lowest ones among equals.

    Nothing is read, unlike in ``top``.
    """
    return magnitudes(x).sort(descending=True, stable=True).indices[:k].sort().values


def powers_of_two(lowest: int, highest: int, device: torch.device) -> Tensor:
    """Return 2^lowest to 2^highest, exactly, float32; exponents are -126 to 127."""
    exponents = torch.arange(lowest, highest + 1, dtype=torch.int32, device=device)
    return ((exponents + 127) << 23).view(torch.float32)
