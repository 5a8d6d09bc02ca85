"""Ternary values that ranks add up without an overflow."""

import math

import pytest
import torch

from gravac.aggregators.ternary import field_bits, pack_sums, unpack_sums, words


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 127, 1000])
def test_summed_fields_never_overflow(ranks: int) -> None:
    codes = torch.randint(0, 3, (100,), generator=torch.Generator().manual_seed(ranks)).repeat(ranks, 1)
    codes[:, :3] = torch.tensor([0, 1, 2])
    packed = torch.stack([pack_sums(one, ranks) for one in codes])
    assert packed.shape == (ranks, words(100, ranks))
    assert torch.equal(unpack_sums(packed.sum(0, dtype=torch.int32), 100, ranks), codes.sum(0).int())
    assert field_bits(ranks) == math.ceil(math.log2(2 * ranks + 1))
