"""Packed bits, trits and wide codes: lossless, and as many bytes as declared."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.kernels import (
    pack,
    pack_trits,
    packed_bytes,
    trit_bytes,
    unpack,
    unpack_trits,
)
from gravac.kernels.packing import pack_wide, unpack_wide
from tests.support.maths.backends import everywhere


@pytest.mark.parametrize("bits", range(1, 9))
@settings(deadline=None, max_examples=30)
@given(data=st.data(), n=st.integers(0, 60))
def test_packing_is_lossless_and_takes_the_declared_bits(bits: int, data: st.DataObject, n: int) -> None:
    values = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=n, max_size=n))
    packed = pack(torch.tensor(values, dtype=torch.int64), bits)
    assert packed.dtype == torch.uint8
    assert packed.numel() == packed_bytes(n, bits) == math.ceil(n * bits / 8)
    assert unpack(packed, n, bits).tolist() == values


@settings(deadline=None, max_examples=30)
@given(values=st.lists(st.integers(0, 2), max_size=40))
def test_packing_trits_is_lossless(values: list[int]) -> None:
    packed = pack_trits(torch.tensor(values, dtype=torch.int8))
    assert packed.numel() == trit_bytes(len(values)) == math.ceil(len(values) / 5)
    assert unpack_trits(packed, len(values)).tolist() == values


@pytest.mark.parametrize("bits", [0, 9])
def test_impossible_widths_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match=f"bits={bits} must be between 1 and 8"):
        pack(torch.zeros(3), bits)


@settings(deadline=None, max_examples=60)
@given(
    bits=st.integers(1, 31), n=st.sampled_from([0, 1, 2, 7, 8, 9, 31, 100, 20_001]), seed=st.integers(0, 1000)
)
def test_packing_wide_codes_is_lossless(bits: int, n: int, seed: int) -> None:
    codes = torch.randint(1 << bits, (n,), generator=torch.Generator().manual_seed(seed)).int()
    packed = everywhere(lambda: pack_wide(codes, bits))
    assert packed.numel() == packed_bytes(n, bits)
    assert torch.equal(everywhere(lambda: unpack_wide(packed, n, bits)), codes)
    if bits <= 8:
        assert torch.equal(everywhere(lambda: pack(codes, bits)), packed)
        assert torch.equal(everywhere(lambda: unpack(packed, n, bits)), codes.to(torch.uint8))
