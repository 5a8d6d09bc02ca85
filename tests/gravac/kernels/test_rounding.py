"""Blocks in a few bits: the same on every backend, the mean right, the error within what is proven."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.kernels import (
    dequantize,
    packed_bytes,
    quantize,
    relative,
    row_scales,
    stochastic_round,
)
from tests.support.maths.backends import LENGTHS, everywhere, vector


@settings(deadline=None, max_examples=80)
@given(
    n=LENGTHS,
    seed=st.integers(0, 10**6),
    block=st.sampled_from([1, 2, 7, 32, 256, 512, 600, 10**6]),
    bits=st.integers(2, 8),
    kind=st.sampled_from(["normal", "mixed", "wild"]),
)
def test_blocks_are_the_same_everywhere(n: int, seed: int, block: int, bits: int, kind: str) -> None:
    x = vector(n, seed, kind)
    scales, packed = everywhere(lambda: quantize(x, block, bits, seed))
    decoded = everywhere(lambda: dequantize(scales, packed, n, block, bits))
    assert scales.shape == (-(-n // min(block, max(n, 1))),)
    assert packed.shape == (packed_bytes(n, bits),)
    steps = 2 ** (bits - 1) - 1
    for number, piece in enumerate(x.split(min(block, max(n, 1))) if n else ()):
        largest = piece.abs().max()
        assert torch.equal(scales[number], largest) or (scales[number].isnan() and largest.isnan())
        if largest.isfinite():
            mine = decoded[number * block : number * block + piece.numel()]
            # Never further than one step, whatever was drawn (and a rounding).
            assert ((mine - piece).abs() <= largest / steps * (1 + 1e-5) + 1e-44).all()
        else:
            assert not decoded[number * block : number * block + piece.numel()].isfinite().any()


def test_the_mean_is_right() -> None:
    x = torch.tensor([0.0, 0.1, -0.37, 0.999, -1.0, 1.0, 0.5, 0.003]).repeat(20_000)
    decoded = dequantize(*quantize(x, 8, 4, 7), x.numel(), 8, 4).view(-1, 8)
    error = (decoded.double().mean(0) - x[:8].double()).abs()
    assert (error <= 4.5 * decoded.double().std(0) / 20_000**0.5 + 1e-7).all()


def test_what_does_not_fit_is_refused() -> None:
    for bits in (1, 9):
        with pytest.raises(ValueError, match=f"bits={bits} must be between 2 and 8"):
            quantize(torch.ones(4), 2, bits, 0)
    with pytest.raises(ValueError, match="1 scales given, 4 elements in blocks of 2"):
        dequantize(torch.ones(1), torch.zeros(4, dtype=torch.uint8), 4, 2, 8)
    with pytest.raises(ValueError, match="cannot hold 4 codes of 8 bits"):
        dequantize(torch.ones(2), torch.zeros(3, dtype=torch.uint8), 4, 2, 8)


def test_scales_survive_both_ends_of_the_range() -> None:
    rows = torch.tensor([[1e-30, -1e-30], [3e38, 3e38], [0.0, 0.0]])
    l2 = row_scales(rows, "l2").tolist()
    assert l2[0] == pytest.approx(2**0.5 * 1e-30)
    assert l2[1:] == [torch.finfo(torch.float32).max, 0.0]
    assert relative(rows, row_scales(rows, "linf")).tolist() == [[1, -1], [1, 1], [0, 0]]


def test_stochastic_rounding_has_the_right_mean() -> None:
    a = torch.tensor([0.0, 0.25, -0.25, 2.0, 6.9]).repeat(20_000, 1)
    rounded = stochastic_round(a, 3)
    assert set((rounded - a.floor()).unique().tolist()) == {0.0, 1.0}
    assert torch.allclose(rounded.mean(0), a[0], atol=4.5 * 0.5 / 20_000**0.5)
