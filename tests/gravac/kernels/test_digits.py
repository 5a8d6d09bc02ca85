"""Digits in words of bits: the same on every backend."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.kernels.packing import DIGITS, pack_digits, unpack_digits, word_count
from tests.support.maths.backends import LENGTHS, everywhere


@settings(deadline=None, max_examples=80)
@given(
    n=st.one_of(LENGTHS, st.integers(12_000, 13_000)),
    seed=st.integers(0, 10**6),
    base=st.sampled_from(sorted(DIGITS)),
    word=st.sampled_from([torch.int32, torch.uint8]),
)
def test_digits_are_the_same_everywhere(n: int, seed: int, base: int, word: torch.dtype) -> None:
    codes = torch.randint(base, (n,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    codes[-40:] = base - 1  # the largest word there is
    packed = everywhere(lambda: pack_digits(codes, base, word))
    assert packed.shape == (word_count(n, base, word),)
    assert torch.equal(everywhere(lambda: unpack_digits(packed, n, base)), codes)
