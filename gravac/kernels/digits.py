"""Codes below a small base, packed as the digits of 32-bit words."""

import torch
from torch import Tensor

from gravac.kernels import backend

DIGITS = {2: 32, 3: 20, 5: 13, 7: 11, 16: 8, 39: 6}
"""Digits that fit a word of 32 bits, by base."""


def word_count(count: int, base: int) -> int:
    """Returns the 32-bit words that ``count`` digits take."""
    return -(-count // _digits(base))


def pack_digits(codes: Tensor, base: int) -> Tensor:
    """Packs codes as digits, as many in a word as fit: 11 of base 7, which is 2.91 bits each.

    Word j of m holds codes j, j + m, j + 2m and so on, so that a processor packs neighboring words at once.

    Args:
        codes: uint8 below ``base``, shape ``(n,)``.
        base: 2, 3, 5, 7, 16 or 39.

    Returns:
        int32 of shape ``(word_count(n, base),)``.

    Raises:
        ValueError: The base is another.
    """
    words = word_count(codes.numel(), base)
    if backend.compiled(codes):
        from gravac.kernels.cpu.digits import pack

        packed = torch.empty(words, dtype=torch.int32)
        pack(codes.numpy(), base, _digits(base), packed.numpy())
        return packed
    missing = words * _digits(base) - codes.numel()
    planes = torch.nn.functional.pad(codes, (0, missing)).view(_digits(base), words)
    word = planes[-1].long()
    for plane in planes[:-1].flip(0):
        word = word * base + plane
    return torch.where(word < 1 << 31, word, word - (1 << 32)).int()


def unpack_digits(packed: Tensor, count: int, base: int) -> Tensor:
    """Returns the codes that ``pack_digits`` packed: uint8 of shape ``(count,)``.

    Raises:
        ValueError: The base is unknown, or the words are more or fewer than ``count`` codes take.
    """
    if packed.numel() != word_count(count, base):
        raise ValueError(
            f"{packed.numel()} words given, {count} digits of base {base} take {word_count(count, base)}"
        )
    if backend.compiled(packed):
        from gravac.kernels.cpu.digits import unpack

        codes = torch.empty(count, dtype=torch.uint8)
        # A multiplication instead of a division: exact for all words of that base, and it fits 64 bits.
        shift = 31 + (base - 1).bit_length()
        unpack(packed.numpy(), base, -(-(1 << shift) // base), shift, codes.numpy())
        return codes
    left, planes = packed.long() & 0xFFFFFFFF, []
    for _ in range(_digits(base)):
        planes.append((left % base).to(torch.uint8))
        left = left // base
    return torch.cat(planes)[:count]


def _digits(base: int) -> int:
    if base not in DIGITS:
        raise ValueError(f"base={base} must be one of {', '.join(map(str, DIGITS))}")
    return DIGITS[base]
