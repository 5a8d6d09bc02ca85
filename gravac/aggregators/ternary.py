"""Means from integer sums: codes of -1, 0 and 1 that ranks all-reduce, several to an integer."""

import torch
from torch import Tensor


def field_bits(ranks: int) -> int:
    """Return the bits that hold the sum of ``ranks`` codes of 0, 1 or 2: ceil(log2(2·ranks + 1))."""
    return (2 * ranks).bit_length()


def words(count: int, ranks: int) -> int:
    """Return the number of int32 words that ``count`` codes take. Fields fill 31 bits, so no sum reaches the sign."""
    per_word = 31 // field_bits(ranks)
    return -(-count // per_word)


def pack_sums(codes: Tensor, ranks: int) -> Tensor:
    """Pack codes into words that can be summed over ranks without overflow.

    Args:
        codes: 0, 1 or 2 per element, shape ``(n,)``.
        ranks: How many ranks are summed.

    Returns:
        int32 of shape ``(words(n, ranks),)``. The sum over ``ranks`` ranks holds the sum of every code.
    """
    bits = field_bits(ranks)
    per_word = 31 // bits
    padded = torch.nn.functional.pad(codes.int(), (0, -codes.numel() % per_word)).view(-1, per_word)
    shifts = torch.arange(0, bits * per_word, bits, dtype=torch.int32, device=codes.device)
    return (padded << shifts).sum(1, dtype=torch.int32)


def unpack_sums(packed: Tensor, count: int, ranks: int) -> Tensor:
    """Return the sums of the codes over ranks, 0 to 2·ranks: int32 of shape ``(count,)``."""
    bits = field_bits(ranks)
    shifts = torch.arange(0, bits * (31 // bits), bits, dtype=torch.int32, device=packed.device)
    return ((packed.unsqueeze(1) >> shifts) & ((1 << bits) - 1)).flatten()[:count]
