"""Blocks coded by Huffman's code: they come back, and have the expected size."""

import pytest
import torch

from gravac.compressors import build
from gravac.kernels import GRIDS, decode_blocks, dither, encode_blocks, expected_bytes, quantize_nearest


@pytest.mark.parametrize("levels", GRIDS)
def test_blocks_come_back_and_have_the_expected_size(levels: int) -> None:
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(3))
    spacings, codes = quantize_nearest(x, 64, levels)
    base = GRIDS[levels].base
    packed = encode_blocks(spacings, codes, base)
    found, back = decode_blocks(packed, spacings.numel(), codes.numel(), base)
    assert torch.equal(found, spacings)
    assert torch.equal(back, codes)
    with pytest.raises(ValueError, match="the Huffman code ends after"):
        decode_blocks(torch.cat((packed, packed[:3])), spacings.numel(), codes.numel(), base)
    bits = build("nearest").normal_bits[levels]  # type: ignore[attr-defined]
    assert packed.numel() == pytest.approx(
        expected_bytes(spacings.numel(), codes.numel(), base, bits), rel=0.01
    )


@pytest.mark.parametrize("levels", [39, 15, 7, 5, 3])
def test_dither_has_the_expected_size(levels: int) -> None:
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(4))
    spacings, codes = dither(x, 64, levels, 2.0, 5)
    base, bits = GRIDS[levels].base, build("dither").normal_bits[levels]  # type: ignore[attr-defined]
    packed = encode_blocks(spacings, codes, base)
    assert packed.numel() == pytest.approx(
        expected_bytes(spacings.numel(), codes.numel(), base, bits), rel=0.01
    )
