"""Huffman coding of rounded blocks: spacings byte by byte, and codes several to a byte."""

import math

import torch
from torch import Tensor

from gravac.kernels.entropy.canonical import HEAD_BYTES, STREAMS
from gravac.kernels.entropy.huffman import huffman_decode, huffman_encode
from gravac.kernels.packing import pack_digits, unpack_digits, word_count

SPACING_BITS = (6.4, 1.0)
"""Bits that the lower and the upper byte of a spacing take in blocks of normal elements."""


def encode_blocks(spacings: Tensor, codes: Tensor, base: int) -> Tensor:
    """Encode what a quantizer returns, without loss.

    Args:
        spacings: bfloat16. Neighbors differ little, so their upper bytes, with the exponents, take few bits.
        codes: uint8 below ``base``, shape ``(n,)``.
        base: 2, 3, 5, 7, 16 or 39.

    Returns:
        uint8, of a size that depends on what is encoded.
    """
    halves = spacings.view(torch.uint8).view(-1, 2)
    # Symbols of several codes let frequent codes take less than a bit each.
    symbols = pack_digits(codes, base, torch.uint8)
    streams = (halves[:, 0].contiguous(), halves[:, 1].contiguous(), symbols)
    return torch.cat([huffman_encode(stream) for stream in streams])


def decode_blocks(packed: Tensor, blocks: int, numel: int, base: int) -> tuple[Tensor, Tensor]:
    """Return the spacings of ``blocks`` blocks and the codes of ``numel`` elements that ``encode_blocks`` encoded.

    Raises:
        ValueError: ``packed`` is not their code.
    """
    halves, begin = torch.empty((blocks, 2), dtype=torch.uint8, device=packed.device), 0
    for half in range(2):
        halves[:, half], taken = huffman_decode(packed[begin:], blocks)
        begin += taken
    symbols, taken = huffman_decode(packed[begin:], word_count(numel, base, torch.uint8))
    if begin + taken != packed.numel():
        raise ValueError(f"the Huffman code ends after {begin + taken} of {packed.numel()} bytes")
    return halves.flatten().view(torch.bfloat16), unpack_digits(symbols, numel, base)


def expected_bytes(blocks: int, numel: int, base: int, bits: float) -> int:
    """Return how many bytes ``encode_blocks`` makes of normal elements.

    Args:
        blocks: Number of spacings.
        numel: Number of codes.
        base: Base of the codes.
        bits: Bits that a code takes.
    """
    symbols = word_count(numel, base, torch.uint8)
    last_words = 2 * STREAMS  # half of each stream's last word is unused
    streams = [(blocks, blocks * each) for each in SPACING_BITS] + [(symbols, numel * bits)]
    return sum(min(1 + size, HEAD_BYTES + last_words + math.ceil(coded / 8)) for size, coded in streams)
