"""Ternary values that ranks add up: of the largest scale, and without an overflow."""

import math

import pytest
import torch
from torch import Tensor

from gravac.aggregators import Aggregator
from gravac.aggregators.ternary import field_bits, pack_sums, unpack_sums, words
from gravac.compressors import Key
from tests.support.maths.aggregator_checks import (
    aggregate,
    bucket,
    world,
)
from tests.support.maths.checks import LECTURE


def test_terngrad_shares_the_largest_scale() -> None:
    one = bucket(0, (4,), (4,))

    def each(aggregator: Aggregator) -> tuple[Tensor, Tensor]:
        rank = aggregator.communicator.rank
        return aggregate(aggregator, one, LECTURE * (1 + rank), 1.0, Key(0, 0, 0, rank))

    for mean, sent in world(2, "terngrad-sum", each):  # type: ignore[misc]
        assert set(sent[:4].abs().tolist()) <= {0.0, 260.0}
        assert set(sent[4:].abs().tolist()) <= {0.0, 112.0}
        assert set(mean[:4].abs().tolist()) <= {0.0, 130.0, 260.0}


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 127, 1000])
def test_summed_fields_never_overflow(ranks: int) -> None:
    codes = torch.randint(0, 3, (100,), generator=torch.Generator().manual_seed(ranks)).repeat(ranks, 1)
    codes[:, :3] = torch.tensor([0, 1, 2])
    packed = torch.stack([pack_sums(one, ranks) for one in codes])
    assert packed.shape == (ranks, words(100, ranks))
    assert torch.equal(unpack_sums(packed.sum(0, dtype=torch.int32), 100, ranks), codes.sum(0).int())
    assert field_bits(ranks) == math.ceil(math.log2(2 * ranks + 1))
