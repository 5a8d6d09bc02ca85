"""A support that ranks share: the leader's, and the rest waits exactly."""

import pytest
import torch

from gravac.compressors import Key
from gravac.compressors import build as build_codec
from tests.gravac.collectives.test_base import one_step
from tests.support.maths.aggregator_checks import BUCKETS, gradient
from tests.support.maths.checks import vector


def test_a_shared_support_is_the_leaders_and_leaves_the_rest_exactly() -> None:
    one = BUCKETS[0]
    n = sum(one.numels)
    topk = build_codec("topk")
    for step in range(4):
        xs = [gradient(rank, step, one, scale=1.0 + (rank == 1)) for rank in range(3)]
        for text, leader in (("topk by shared:leader=turns", step % 3), ("topk by shared:leader=largest", 1)):
            support = topk.compress(xs[leader], 10.0, Key(0, 0, 0, 0), torch.float32).support
            assert support is not None
            for x, (mean, sent) in zip(xs, one_step(3, text, xs, 10.0, step), strict=True):
                expected = torch.zeros(n)
                expected[support.long()] = x[support.long()]
                assert torch.equal(sent, expected)
                assert mean.nonzero().squeeze(1).tolist() == support.tolist()


@pytest.mark.parametrize("text", ["topk+nearest:levels=15 by shared", "topk+bf16 by shared:leader=turns"])
def test_rounded_values_of_a_shared_support_leave_both_errors_in_memories(text: str) -> None:
    xs = [vector("heavy", 20_000, rank) for rank in range(3)]
    done, plain = one_step(3, text, xs, 20.0), one_step(3, f"topk by {text.split(' by ')[1]}", xs, 20.0)
    sent, exact = (torch.stack([each for _, each in of]).double().mean(0) for of in (done, plain))
    for mean, _ in done:
        assert torch.equal(mean, done[0][0])
        assert float((mean.double() - sent).abs().max()) <= 1e-6 * float(sent.abs().max())
    error = float((sent - exact).square().sum() / exact.square().sum())
    assert 1e-8 < error < 0.05
    assert not bool(done[0][1][plain[0][1] == 0].any())
