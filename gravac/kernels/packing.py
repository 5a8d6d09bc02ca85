"""Packing: codes of a few bits take that many bits on the wire, and codes below a small base are digits of words."""

import torch
from torch import Tensor

from gravac.kernels import backend

_TRITS = 5
"""Base-3 digits per byte: 3^5 = 243."""
DIGITS = {2: 32, 3: 20, 5: 13, 7: 11, 16: 8, 39: 6}
"""Digits that fit a word of 32 bits, by base."""
BYTE_DIGITS = {2: 8, 3: 5, 5: 3, 7: 2, 16: 2, 39: 1}
"""Digits that fit a byte, by base."""


def packed_bytes(count: int, bits: int) -> int:
    """Return the bytes that ``count`` codes of ``bits`` bits take: ceil(count · bits / 8)."""
    return (count * bits + 7) // 8


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes of a few bits, the first code lowest.

    Args:
        codes: Below ``2**bits``, any integer dtype or bool, shape ``(n,)``.
        bits: 1 to 8.

    Returns:
        uint8 of shape ``(packed_bytes(n, bits),)``.
    """
    _check(bits, 8)
    codes = codes.view(torch.uint8) if codes.dtype == torch.bool else codes.to(torch.uint8)
    if bits == 8:
        return codes
    if backend.compiled(codes):
        size = packed_bytes(codes.numel(), bits)
        packed = torch.empty(size, dtype=torch.uint8, device="cpu")
        backend.host.pack_codes(codes.data_ptr(), bits, packed.data_ptr(), codes.numel(), size)
        return packed
    if backend.on_gpu(codes):
        return _on_device(codes, bits)
    # The smallest group of codes that fills whole bytes: 8 codes, or one byte's worth.
    group = 8 // bits if 8 % bits == 0 else 8
    padded = torch.nn.functional.pad(codes, (0, -codes.numel() % group)).view(-1, group)
    if 8 % bits == 0:
        word = padded[:, 0].clone()
        for place in range(1, group):
            word |= padded[:, place] << (bits * place)
        return word
    wide = padded.long() << torch.arange(0, 8 * bits, bits, device=codes.device, dtype=torch.int64)
    word = wide.sum(1)  # no two codes share a bit, so the sum is the union
    bytes_ = (word.unsqueeze(1) >> torch.arange(0, 8 * bits, 8, device=codes.device, dtype=torch.int64)) & 255
    return bytes_.to(torch.uint8).flatten()[: packed_bytes(codes.numel(), bits)]


def unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    """Return the codes that ``pack`` packed: uint8 of shape ``(count,)``."""
    _check(bits, 8)
    check_room(packed, count, bits)
    if bits == 8:
        return packed[:count]
    if backend.compiled(packed):
        codes = torch.empty(count, dtype=torch.uint8, device="cpu")
        backend.host.unpack_codes(packed.data_ptr(), bits, codes.data_ptr(), count, packed.numel())
        return codes
    if backend.on_gpu(packed):
        return _on_device_back(packed, count, bits, torch.uint8)
    if 8 % bits == 0:
        places = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
        codes = (packed.unsqueeze(1) >> places) & ((1 << bits) - 1)
        return codes.flatten()[:count]
    padded = torch.nn.functional.pad(packed, (0, -packed.numel() % bits)).view(-1, bits).long()
    word = (padded << torch.arange(0, 8 * bits, 8, device=packed.device, dtype=torch.int64)).sum(1)
    codes = (
        word.unsqueeze(1) >> torch.arange(0, 8 * bits, bits, device=packed.device, dtype=torch.int64)
    ) & ((1 << bits) - 1)
    return codes.to(torch.uint8).flatten()[:count]


def trit_bytes(count: int) -> int:
    """Return the bytes that ``count`` base-3 digits take: ceil(count / 5)."""
    return (count + _TRITS - 1) // _TRITS


def pack_trits(codes: Tensor) -> Tensor:
    """Pack base-3 digits, five per byte.

    Args:
        codes: 0, 1 or 2, shape ``(n,)``.

    Returns:
        uint8 of shape ``(trit_bytes(n),)``.
    """
    padded = torch.nn.functional.pad(codes.to(torch.uint8), (0, -codes.numel() % _TRITS)).view(-1, _TRITS)
    word = padded[:, _TRITS - 1].clone()
    for place in range(_TRITS - 2, -1, -1):
        word = word * 3 + padded[:, place]
    return word


def unpack_trits(packed: Tensor, count: int) -> Tensor:
    """Return the digits that ``pack_trits`` packed: uint8 of shape ``(count,)``."""
    digits, left = [], packed
    for _ in range(_TRITS):
        digits.append(left % 3)
        left = left // 3
    return torch.stack(digits, 1).flatten()[:count]


def pack_wide(codes: Tensor, bits: int) -> Tensor:
    """Pack codes of 1 to 31 bits (int32, shape ``(n,)``), as ``pack`` does."""
    _check(bits, 31)
    if backend.on_gpu(codes):
        return _on_device(codes, bits)
    places = torch.arange(bits, device=codes.device, dtype=torch.int64)
    # Eight codes fill whole bytes, so pieces of a multiple of eight can be packed apart.
    pieces = [
        pack(((piece.unsqueeze(1) >> places) & 1).flatten(), 1) for piece in torch.split(codes, 1 << 14)
    ]
    return torch.cat(pieces)


def unpack_wide(packed: Tensor, count: int, bits: int) -> Tensor:
    """Return the codes that ``pack_wide`` packed: int32 of shape ``(count,)``."""
    _check(bits, 31)
    check_room(packed, count, bits)
    if backend.on_gpu(packed):
        return _on_device_back(packed, count, bits, torch.int32)
    places = torch.arange(bits, dtype=torch.int32, device=packed.device)
    ones = unpack(packed, count * bits, 1).view(count, bits)
    return (ones.int() << places).sum(1, dtype=torch.int32)  # no two share a bit: the sum is the union


def _check(bits: int, most: int) -> None:
    if not 1 <= bits <= most:
        raise ValueError(f"bits={bits} must be between 1 and {most}")


def check_room(packed: Tensor, count: int, bits: int) -> None:
    """Raise ValueError if ``packed`` is too short for ``count`` codes of ``bits`` bits."""
    if packed.numel() < packed_bytes(count, bits):
        raise ValueError(f"{packed.numel()} bytes cannot hold {count} codes of {bits} bits")


def _on_device(codes: Tensor, bits: int) -> Tensor:
    from gravac.kernels.cuda.bits import pack as on_device

    return on_device(codes, bits, packed_bytes(codes.numel(), bits))


def _on_device_back(packed: Tensor, count: int, bits: int, dtype: torch.dtype) -> Tensor:
    from gravac.kernels.cuda.bits import unpack as on_device

    return on_device(packed, count, bits, dtype)


def word_count(count: int, base: int, word: torch.dtype = torch.int32) -> int:
    """Return how many words ``count`` digits take."""
    return -(-count // _digits(base, word))


def pack_digits(codes: Tensor, base: int, word: torch.dtype = torch.int32) -> Tensor:
    """Pack codes as digits, as many in a word as fit: 11 of base 7 in 32 bits, which is 2.91 bits each.

    Word j of m holds codes j, j + m, j + 2m and so on, so that a processor packs neighboring words at once.

    Args:
        codes: uint8 below ``base``, shape ``(n,)``.
        base: 2, 3, 5, 7, 16 or 39.
        word: int32 or uint8.

    Returns:
        Words of shape ``(word_count(n, base, word),)``.

    Raises:
        ValueError: The base is another.
    """
    digits, words = _digits(base, word), word_count(codes.numel(), base, word)
    if codes.dtype == torch.uint8 and backend.compiled(codes):
        packed, host = torch.empty(words, dtype=word, device="cpu"), backend.host
        run = host.pack_byte_digits if word == torch.uint8 else host.pack_digits
        run(codes.data_ptr(), base, digits, packed.data_ptr(), codes.numel(), words)
        return packed
    planes = torch.nn.functional.pad(codes, (0, words * digits - codes.numel())).view(digits, words)
    packed = planes[-1].long()
    for plane in planes[:-1].flip(0):
        packed = packed * base + plane
    return torch.where(packed < 1 << 31, packed, packed - (1 << 32)).to(word)


def unpack_digits(packed: Tensor, count: int, base: int) -> Tensor:
    """Return the codes that ``pack_digits`` packed: uint8 of shape ``(count,)``.

    Raises:
        ValueError: The base is unknown, or the words are more or fewer than ``count`` codes take.
    """
    words = word_count(count, base, packed.dtype)
    if packed.numel() != words:
        raise ValueError(f"{packed.numel()} words given, {count} digits of base {base} take {words}")
    if packed.dtype in (torch.uint8, torch.int32) and backend.compiled(packed):
        host = backend.host
        codes = torch.empty(count, dtype=torch.uint8, device="cpu")
        # A multiplication instead of a division: exact for all words of that base, and it fits 64 bits.
        shift = 31 + (base - 1).bit_length()
        run = host.unpack_byte_digits if packed.dtype == torch.uint8 else host.unpack_digits
        run(packed.data_ptr(), base, -(-(1 << shift) // base), shift, codes.data_ptr(), count, words)
        return codes
    left, planes = packed.long() & 0xFFFFFFFF, []
    for _ in range(_digits(base, packed.dtype)):
        planes.append((left % base).to(torch.uint8))
        left = left // base
    return torch.cat(planes)[:count]


def _digits(base: int, word: torch.dtype) -> int:
    if base not in DIGITS:
        raise ValueError(f"base={base} must be one of {', '.join(map(str, DIGITS))}")
    return BYTE_DIGITS[base] if word == torch.uint8 else DIGITS[base]
