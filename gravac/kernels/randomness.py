"""Random numbers that follow from a seed and a position, not from earlier draws.

They are SplitMix64 (Steele, Lea & Flood 2014) as a hash of a counter. Any part of a stream can be made alone, in any
order, and is the same on every device and platform. The generators of torch do not promise that.
"""

import torch
from torch import Tensor

from gravac.kernels import backend

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1
_AT_ONCE = 1 << 16
"""Words processed at a time on a CPU, so that intermediate results stay in its cache."""


def mixed(word: int) -> int:
    """Return the output function of SplitMix64: a bijection of 64-bit words with no visible pattern."""
    word = (word ^ (word >> 30)) * _FIRST & _WORD
    word = (word ^ (word >> 27)) * _SECOND & _WORD
    return word ^ (word >> 31)


def stream(seed: int) -> int:
    """Return where the stream of a seed begins, signed 64-bit. Streams of neighboring seeds do not overlap."""
    return signed(mixed((seed + _GOLDEN) & _WORD))


def words(count: int, seed: int, device: torch.device, first: int = 0) -> Tensor:
    """Return the 64-bit words ``first`` to ``first + count - 1`` of a seed's stream: int64 of shape ``(count,)``."""
    word = torch.arange(first + 1, first + count + 1, device=device, dtype=torch.int64) * signed(
        _GOLDEN
    ) + stream(seed)
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        word = (word ^ _right(word, shift)) * signed(factor)
    return word ^ _right(word, 31)


def noise(count: int, seed: int, device: torch.device) -> Tensor:
    """Return ``count`` uniform numbers in [0, 1), float32 and multiples of 2^-24, equal on every device."""
    out = torch.empty(count, device=device, dtype=torch.float32)
    if backend.compiled(out):
        backend.host.noise(stream(seed), out.data_ptr(), count)
        return out
    if backend.on_gpu(out):
        from gravac.kernels.cuda.draws import fill_noise

        fill_noise(out, stream(seed))
        return out
    size = _AT_ONCE if device.type == "cpu" else max(1, count)
    for begin in range(0, count, 2 * size):
        part = out[begin : begin + 2 * size]
        word = words((part.numel() + 1) // 2, seed, device, begin // 2)
        # A word gives two numbers: its upper 24 bits, and the 24 below the middle.
        pair = torch.stack((_right(word, 40), _right(word, 8) & 0xFFFFFF), 1)
        part.copy_(pair.flatten()[: part.numel()]).mul_(2.0**-24)
    return out


def signed(word: int) -> int:
    """Return the same 64 bits as torch and numpy hold them."""
    return word - (1 << 64) if word >> 63 else word


def _right(word: Tensor, by: int) -> Tensor:
    """Shift right and fill with zeros."""
    return (word >> by) & ((1 << (64 - by)) - 1)
