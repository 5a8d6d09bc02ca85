"""Two magnitudes and a sign in two bits: the same on every backend."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.kernels import (
    dequantize_two_bits,
    quantize_two_bits,
)
from tests.support.maths.backends import LENGTHS, everywhere, vector


@settings(deadline=None, max_examples=80)
@given(
    n=LENGTHS,
    seed=st.integers(0, 10**6),
    block=st.sampled_from([1, 2, 7, 16, 128, 600, 10**6]),
    kind=st.sampled_from(["normal", "mixed", "wild"]),
)
def test_two_magnitudes_are_the_same_everywhere(n: int, seed: int, block: int, kind: str) -> None:
    x = vector(n, seed, kind)
    means, packed = everywhere(lambda: quantize_two_bits(x, block))
    decoded = everywhere(lambda: dequantize_two_bits(means, packed, n, block))
    for mine, piece in zip(decoded.split(block), x.split(block), strict=True) if n else ():
        top = piece.abs().max()
        if not top.isfinite():
            assert not mine.isfinite().any()
            continue
        assert mine.isfinite().all()
        assert torch.equal(mine.signbit(), ~(piece >= 0))
        assert mine.abs().unique().numel() <= 2
