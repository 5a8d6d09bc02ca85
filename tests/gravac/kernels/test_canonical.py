"""Lengths of canonical Huffman codes, which no symbol may exceed."""

import math

import torch

from gravac.kernels.entropy import canonical
from gravac.kernels.entropy.huffman import huffman_decode, huffman_encode


def test_codes_stay_short_where_frequencies_double() -> None:
    """Frequencies 1, 2, 4, … would give codes of up to 19 bits."""
    symbols = torch.cat([torch.full((1 << k,), k, dtype=torch.uint8) for k in range(20)])
    lengths = [0] * 256
    counts = torch.bincount(symbols, minlength=256).tolist()
    bits = canonical.assign_lengths(counts, lengths, [0] * 1792)
    assert max(lengths) == canonical.LONGEST
    assert sum(2.0**-length for length in lengths if length) == 1.0
    assert bits == sum(map(math.prod, zip(counts, lengths, strict=True)))
    assert bits <= 1.02 * (2 * symbols.numel())  # two bits each, nearly, without the limit
    assert torch.equal(huffman_decode(huffman_encode(symbols), symbols.numel())[0], symbols)
