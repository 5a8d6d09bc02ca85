"""Positions that follow from a seed shared by all ranks: random, in runs, or dealt out among ranks.

To deal them out, each row of as many neighbors as there are ranks gives one to each rank. Element ``p`` is in row
``p // ranks`` and belongs to rank ``(p + turn(row)) % ranks``. ``turn`` is Fibonacci hashing of the row (Knuth, The Art
of Computer Programming, volume 3, 6.4), so that elements that are close together, or evenly spaced, are split about
evenly.
"""

import math

import torch
from torch import Tensor

from gravac.kernels import backend, reference
from gravac.kernels.backend import is_device
from gravac.kernels.randomness import words

_SMALL = 1024
"""Up to this many elements, all are put in random order. That is exactly uniform, and a network of few bits is not."""
_ROUNDS = 6


def distinct(numel: int, count: int, seed: int, device: torch.device | None = None) -> Tensor:
    """Draw different positions in random order.

    Every set of positions is as likely as any other, as far as tests can tell. A seed gives the same on every device; a
    smaller ``count`` gives the beginning of a larger one. Time and memory grow with ``count``, not ``numel``: positions
    are the images of 0, 1, 2, … under a random permutation of the next power of two, a Feistel network (Luby & Rackoff
    1988), without those that are too large (Black & Rogaway 2002, §4).

    Args:
        numel: Number of positions, at most 2^31 - 1.
        count: How many to draw.
        seed: 63-bit seed.
        device: The device of the result; None for the host.

    Returns:
        int32 of shape ``(count,)``.

    Raises:
        ValueError: ``count`` is not between 0 and ``numel``, or ``numel`` is too large.
    """
    if not 0 <= count <= numel < 2**31:
        raise ValueError(f"count={count} must be between 0 and numel={numel}, and numel below 2^31")
    host = torch.device("cpu")
    if numel <= _SMALL:
        return torch.argsort(words(numel, seed, device or host), stable=True)[:count].int()
    if is_device(device):
        return _on_device(numel, count, seed, device or host)
    lower, upper = _halves(numel)
    keys = words(_ROUNDS, seed, host) & 0xFFFFFFFF
    if backend.compiled(keys):
        out = torch.empty(count, dtype=torch.int32, device="cpu")
        backend.host.distinct(numel, keys.data_ptr(), lower, upper, out.data_ptr(), keys.numel(), count)
        return out
    # Images that are too large are left out (cycle walking would need a loop for each), so draw until there are enough.
    pieces, left, first = [], count, 0
    while left > 0:
        # As many as will do on average, and a few more.
        size = (left << (lower + upper)) // numel + 64
        numbers = torch.arange(first, first + size, dtype=torch.int64, device="cpu")
        images = _permuted(numbers, keys.tolist(), lower, upper)
        found = images[images < numel][:left]
        pieces.append(found.int())
        left, first = left - found.numel(), first + size
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.int32, device="cpu")


def _halves(numel: int) -> tuple[int, int]:
    """Return the bits of a position below ``numel`` in the lower and in the upper half of the network."""
    bits = (numel - 1).bit_length()
    return bits // 2, bits - bits // 2


def _on_device(numel: int, count: int, seed: int, device: torch.device) -> Tensor:
    """Draw as ``distinct`` does, without waiting to see how many images are too large.

    There are enough candidates: before they are too few, the number found is 16 standard deviations from its mean.
    """
    lower, upper = _halves(numel)
    all_ = 1 << (lower + upper)
    candidates = min(all_, ((count + 12 * math.isqrt(count) + 64) * all_) // numel + 1)
    if backend.gpu_kernels(device):
        from gravac.kernels.cuda.draws import distinct as on_gpu

        return on_gpu(numel, count, words(_ROUNDS, seed, device) & 0xFFFFFFFF, lower, upper, candidates)
    keys = words(_ROUNDS, seed, torch.device("cpu")) & 0xFFFFFFFF
    images = _permuted(
        torch.arange(candidates, device=device, dtype=torch.int64), keys.tolist(), lower, upper
    )
    return reference.compact(images, images < numel, count).int()


def _permuted(numbers: Tensor, keys: list[int], lower: int, upper: int) -> Tensor:
    left, right = numbers >> lower, numbers & ((1 << lower) - 1)
    for turn in range(0, len(keys), 2):
        left = (left ^ _scrambled(right, keys[turn])) & ((1 << upper) - 1)
        right = (right ^ _scrambled(left, keys[turn + 1])) & ((1 << lower) - 1)
    return (left << lower) | right


def _scrambled(word: Tensor, key: int) -> Tensor:
    """Return a function of 32 bits and a key with no visible pattern (the end of MurmurHash3)."""
    word = (word * 0x9E3779B1 + key) & 0xFFFFFFFF
    word = ((word ^ (word >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    word = ((word ^ (word >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return word ^ (word >> 16)


def run_places(numel: int, start: int, count: int, device: torch.device | None = None) -> Tensor:
    """Return the positions of a run that wraps around the end, in its order: int64 of shape ``(count,)``."""
    pieces = [
        torch.arange(*piece, device=device, dtype=torch.int64) for piece in _slices(numel, start, count)
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def take_run(x: Tensor, start: int, count: int) -> Tensor:
    """Return ``count`` neighbors of ``x``, shape ``(n,)``, from ``start`` on; the run wraps around the end. A copy."""
    return torch.cat([x[begin:end] for begin, end in _slices(x.numel(), start, count)])


def add_run(out: Tensor, start: int, values: Tensor, scale: float = 1.0) -> None:
    """Add values to a run of neighbors: ``out += scale · values``."""
    at = 0
    for begin, end in _slices(out.numel(), start, values.numel()):
        out[begin:end].add_(values[at : at + end - begin], alpha=scale)
        at += end - begin


def _slices(numel: int, start: int, count: int) -> list[tuple[int, int]]:
    if not (0 <= start < numel and 0 <= count <= numel):
        raise ValueError(
            f"start={start} must be between 0 and {numel - 1}, count={count} between 0 and {numel}, the elements"
        )
    end = start + count
    return [(start, end)] if end <= numel else [(start, numel), (0, end - numel)]


def global_positions(rows: Tensor, owner: int, ranks: int, seed: int) -> Tensor:
    """Return the positions of rows of an owner's share, int32.

    Args:
        rows: int32, shape ``(k,)``.
        owner: The rank that owns them.
        ranks: Number of owners.
        seed: 0 to 2^31 - 1; another one gives another deal.
    """
    if rows.dtype == torch.int32 and backend.compiled(rows):
        places = torch.empty_like(rows)
        backend.host.global_positions(rows.data_ptr(), owner, ranks, seed, places.data_ptr(), rows.numel())
        return places
    return reference.global_positions(rows, owner, ranks, seed)
