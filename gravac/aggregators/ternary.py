"""Sums of -1, 0 and 1 over ranks, several to an integer: an all-reduce that stays exact and small."""

import torch
from torch import Tensor


def field_bits(ranks: int) -> int:
    """Bits that hold the sum of ``ranks`` codes of 0, 1 or 2."""
    return (2 * ranks).bit_length()


def words(count: int, ranks: int) -> int:
    """int32 words that ``count`` codes take: as many fields in 31 bits as fit, so that no sum changes its sign."""
    per_word = 31 // field_bits(ranks)
    return -(-count // per_word)


def pack_sums(codes: Tensor, ranks: int) -> Tensor:
    """Codes 0, 1 or 2 of shape ``(n,)`` as int32 words whose sum over ``ranks`` ranks holds every code's sum."""
    bits = field_bits(ranks)
    per_word = 31 // bits
    padded = torch.nn.functional.pad(codes.int(), (0, -codes.numel() % per_word)).view(-1, per_word)
    places = torch.arange(0, bits * per_word, bits, dtype=torch.int32, device=codes.device)
    return (padded << places).sum(1, dtype=torch.int32)


def unpack_sums(packed: Tensor, count: int, ranks: int) -> Tensor:
    """Sums of the codes over ranks, int32, shape ``(count,)``, 0 to 2·ranks."""
    bits = field_bits(ranks)
    places = torch.arange(0, bits * (31 // bits), bits, dtype=torch.int32, device=packed.device)
    return ((packed.unsqueeze(1) >> places) & ((1 << bits) - 1)).flatten()[:count]
