"""Positions of elements in about as many bits as their entropy, and in a size that all ranks know beforehand.

Few positions are coded as Elias and Fano did (Elias 1974; Vigna 2013, Quasi-succinct indices). The lower bits of each
position are stored as they are. The upper ones are stored as a walk: a 1 for each position, and a 0 for each step of
the upper part. That takes at most 2 + log2(n/k) bits per position, where entropy needs about 1.44 + log2(n/k). Many
positions, about n/4 and more, are stored as one bit for each element.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from gravac.kernels import backend, reference
from gravac.kernels.backend import on_device
from gravac.kernels.packing import pack, pack_wide, packed_bytes, unpack, unpack_wide


class _Layout(NamedTuple):
    low: int
    """Lower bits of a position that are stored as they are; 0 if there is a bit for each element."""
    ones: int
    """Bits of the other part."""
    lower: int
    """Bytes of the lower bits."""
    total: int
    """Bytes of both parts."""


@lru_cache(maxsize=4096)  # the same few buckets and CFs in every step
def position_bytes(count: int, numel: int) -> int:
    """Return the bytes that any ``count`` different positions of ``numel`` take; ``count`` is 0 to ``numel``."""
    return _layout(count, numel).total


def pack_positions(indices: Tensor, numel: int) -> Tensor:
    """Pack positions.

    Args:
        indices: Ascending and distinct, int32 or int64, shape ``(k,)``.
        numel: All positions are below it.

    Returns:
        uint8 of shape ``(position_bytes(k, numel),)``.

    Raises:
        ValueError: A position is outside. On a device nothing is raised.
    """
    count, host = indices.numel(), backend.host
    low, ones, lower, total = _layout(count, numel)
    if host is not None and indices.is_cpu:
        if indices.dtype != torch.int32:
            _check_range(indices, numel)
        narrow, packed = indices.int().contiguous(), torch.zeros(total, dtype=torch.uint8, device="cpu")
        if not host.write_positions(narrow.data_ptr(), numel, low, lower, packed.data_ptr(), count, total):
            _check_range(narrow, numel)
        return packed
    if backend.on_gpu(indices):
        from gravac.kernels.cuda.bits import pack as packed_on_device
        from gravac.kernels.cuda.bits import set_ones

        upper = set_ones(indices, ones, low)
        return torch.cat((packed_on_device(indices, low, lower), upper)) if low else upper
    if not on_device(indices):
        _check_range(indices, numel)
    if not low:
        return _set_ones(indices, ones)
    # The i-th one stands behind the i ones before it and a zero for each step of its upper part.
    upper = (indices >> low) + _order(indices)
    return torch.cat((pack_wide((indices & ((1 << low) - 1)).int(), low), _set_ones(upper, ones)))


def unpack_positions(packed: Tensor, count: int, numel: int) -> Tensor:
    """Unpack what ``pack_positions`` packed.

    Args:
        packed: uint8.
        count: Number of positions.
        numel: All positions are below it.

    Returns:
        int32 of shape ``(count,)``.

    Raises:
        ValueError: The payload is damaged. On a device only its size is checked. If positions are missing, the last
            ones are below zero, which ``scatter_add`` turns into NaN.
    """
    low, _, lower, total = _layout(count, numel)
    if packed.numel() != total:
        raise ValueError(f"{packed.numel()} bytes given, {count} places of {numel} take {total}")
    host = backend.host
    if host is not None and packed.is_cpu and packed.is_contiguous() and packed.dtype == torch.uint8:
        indices = torch.empty(count, dtype=torch.int32, device="cpu")
        found = host.read_positions(packed.data_ptr(), low, lower, indices.data_ptr(), count, total)
        if found != count:
            raise _damaged(found, count)
        return indices
    if backend.on_gpu(packed):
        from gravac.kernels.cuda.bits import find_ones

        return find_ones(packed[lower:], count, low, packed[:lower])
    places = _find_ones(packed[lower:], count)
    return ((places - _order(places)) << low) | unpack_wide(packed[:lower], count, low) if low else places


@lru_cache(maxsize=4096)
def _layout(count: int, numel: int) -> _Layout:
    """Return the smallest layout, which every rank computes from the two counts."""
    if not 0 <= count <= numel:
        raise ValueError(f"count={count} must be between 0 and numel={numel}")
    if not count:
        return _Layout(0, 0, 0, 0)
    deltas = ((low, count + ((numel - 1) >> low)) for low in range(1, 32))
    low, ones = min((0, numel), *deltas, key=lambda sizes: count * sizes[0] + sizes[1])
    lower = packed_bytes(count, low)
    return _Layout(low, ones, lower, lower + packed_bytes(ones, 1))


def _check_range(indices: Tensor, numel: int) -> None:
    if indices.numel():
        least, most = (int(end) for end in indices.aminmax())
        if least < 0 or most >= numel:
            raise ValueError(f"indices reach from {least} to {most}, outside 0..{numel - 1}")


def _order(indices: Tensor) -> Tensor:
    return torch.arange(indices.numel(), dtype=indices.dtype, device=indices.device)


def _set_ones(places: Tensor, size: int) -> Tensor:
    """Return ``size`` bits, lowest first in each byte, with ones at these positions."""
    bits = torch.zeros(size, dtype=torch.uint8, device=places.device)
    return pack(bits.scatter_(0, places.long(), 1), 1)


def _find_ones(packed: Tensor, count: int) -> Tensor:
    """Return the positions of the ones, int32 of shape ``(count,)``."""
    if on_device(packed):
        ones = unpack(packed, 8 * packed.numel(), 1).bool()
        return reference.chosen_places(ones, count, fill=-1).int()
    places = unpack(packed, 8 * packed.numel(), 1).nonzero().squeeze(1).int()
    if places.numel() != count:
        raise _damaged(places.numel(), count)
    return places


def _damaged(found: int, count: int) -> ValueError:
    return ValueError(f"{found} places found in a payload of {count}: it is damaged")
