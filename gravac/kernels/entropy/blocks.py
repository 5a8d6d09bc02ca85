"""Huffman coding of rounded blocks: spacings byte by byte, and codes several to a byte."""

import math

import torch
from torch import Tensor

from gravac.kernels import backend
from gravac.kernels.entropy.canonical import HEAD_BYTES, STREAMS
from gravac.kernels.entropy.huffman import huffman_decode, huffman_encode

JOINED = {2: 8, 3: 5, 5: 3, 7: 2, 16: 2, 39: 1}
"""Codes in a byte, by base: so many that frequent ones can take less than a bit."""

SPACING_BITS = (6.4, 1.0)
"""Bits that the two bytes of a spacing take in blocks of normal elements."""


def encode_blocks(spacings: Tensor, codes: Tensor, base: int) -> Tensor:
    """Encodes what a quantizer returns, without loss.

    Args:
        spacings: bfloat16. Neighbors differ little, so their upper bytes, with the exponents, take few bits.
        codes: uint8 below ``base``, shape ``(n,)``.
        base: 2, 3, 5, 7, 16 or 39.

    Returns:
        uint8, of a size that depends on what is encoded.
    """
    halves = spacings.view(torch.uint8).view(-1, 2)
    streams = (halves[:, 0].contiguous(), halves[:, 1].contiguous(), join(codes, base))
    return torch.cat([huffman_encode(stream) for stream in streams])


def decode_blocks(packed: Tensor, blocks: int, numel: int, base: int) -> tuple[Tensor, Tensor]:
    """Returns the spacings of ``blocks`` blocks and the codes of ``numel`` elements that ``encode_blocks`` encoded.

    Raises:
        ValueError: ``packed`` is not their code.
    """
    halves, begin = torch.empty((blocks, 2), dtype=torch.uint8, device=packed.device), 0
    for half in range(2):
        halves[:, half], taken = huffman_decode(packed[begin:], blocks)
        begin += taken
    symbols, taken = huffman_decode(packed[begin:], -(-numel // JOINED[base]))
    if begin + taken != packed.numel():
        raise ValueError(f"the Huffman code ends after {begin + taken} of {packed.numel()} bytes")
    return halves.flatten().view(torch.bfloat16), split(symbols, numel, base)


def expected_bytes(blocks: int, numel: int, base: int, bits: float) -> int:
    """Returns how many bytes ``encode_blocks`` makes of normal elements.

    Args:
        blocks: Spacings.
        numel: Codes.
        base: As in ``encode_blocks``.
        bits: That a code takes.
    """
    symbols, last_words = -(-numel // JOINED[base]), 2 * STREAMS  # half of each stream's last word is unused
    streams = [(blocks, blocks * each) for each in SPACING_BITS] + [(symbols, numel * bits)]
    return sum(min(1 + size, HEAD_BYTES + last_words + math.ceil(coded / 8)) for size, coded in streams)


def join(codes: Tensor, base: int) -> Tensor:
    """Returns bytes of as many codes as fit: byte j of m has codes j, j + m, j + 2m and so on.

    Args:
        codes: As in ``encode_blocks``.
        base: As in ``encode_blocks``.
    """
    each = JOINED[base]
    if backend.compiled(codes):
        from gravac.kernels.cpu.huffman import join as compiled

        joined = torch.empty(-(-codes.numel() // each), dtype=torch.uint8)
        compiled(codes.numpy(), base, joined.numpy())
        return joined
    planes = torch.nn.functional.pad(codes, (0, -codes.numel() % each)).view(each, -1)
    joined = planes[-1].clone()
    for plane in planes[:-1].flip(0):
        joined.mul_(base).add_(plane)
    return joined


def split(joined: Tensor, numel: int, base: int) -> Tensor:
    """Returns the ``numel`` codes that ``join`` joined."""
    if backend.compiled(joined):
        from gravac.kernels.cpu.huffman import split as compiled

        codes = torch.empty(numel, dtype=torch.uint8)
        compiled(joined.numpy(), base, codes.numpy())
        return codes
    left, planes = joined, []
    for _ in range(JOINED[base]):
        planes.append(left % base)
        left = left // base
    return torch.cat(planes)[:numel]
