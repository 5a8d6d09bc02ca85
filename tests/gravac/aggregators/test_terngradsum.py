"""TernGrad of all ranks together: they share the largest scale."""

from torch import Tensor

from gravac.aggregators import Aggregator
from gravac.compressors import Key
from tests.support.maths.aggregator_checks import aggregate, bucket, world
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
