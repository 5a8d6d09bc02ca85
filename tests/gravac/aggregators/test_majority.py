"""The majority of signs."""

import pytest
import torch
from torch import Tensor

from gravac.aggregators import Aggregator
from gravac.compressors import Key
from tests.support.maths.aggregator_checks import (
    aggregate,
    bucket,
    world,
)


def test_majority() -> None:
    signs = torch.tensor([[3.0, -1, 2, -1], [1, -1, -2, 4], [2, 5, -1, -2]])
    one = bucket(0, (4,))

    def each(aggregator: Aggregator) -> Tensor:
        rank = aggregator.communicator.rank
        return aggregate(aggregator, one, signs[rank], 1.0, Key(0, 0, 0, rank))[0]

    scale = float(signs.abs().mean())
    for mean in world(3, "majority", each):
        assert mean.tolist() == pytest.approx([scale, -scale, -scale, -scale])  # type: ignore[attr-defined]
