"""How sparsifiers differ: which elements they send, how many, and whether ranks agree."""

import pytest
import torch

from gravac.compressors import Key, build
from tests.support.maths.checks import KEY, vector


@pytest.mark.parametrize("name", ["randomk", "blockrandomk", "bernoulli"])
def test_shared_draws_are_the_same_on_all_ranks_and_new_each_step(name: str) -> None:
    x = vector("gauss", 1000)
    one, other_rank, other_step, other_bucket = (
        build(name).compress(x, 10.0, key, torch.float32).support
        for key in (KEY, KEY._replace(rank=0), KEY._replace(step=18), KEY._replace(bucket=3))
    )
    assert one is not None
    assert other_rank is not None
    assert torch.equal(one, other_rank)
    for other in (other_step, other_bucket):
        assert other is not None
        assert not torch.equal(one, other)


@pytest.mark.parametrize("name", ["qsgd", "terngrad", "natural", "nuqsgd", "atomo"])
def test_rounding_noise_differs_between_ranks(name: str) -> None:
    """Equal noise on all ranks would not average out."""
    x, apart, together = vector("gauss", 4096), 0.0, 0.0
    for step in range(12):
        one, two = (
            build(name).decode(build(name).compress(x, 8.0, Key(0, step, 0, rank), torch.float32))
            for rank in (0, 1)
        )
        assert not torch.equal(one, two)
        together += float(((one + two) / 2 - x).square().sum())
        apart += float((one - x).square().sum() + (two - x).square().sum()) / 2
    assert together / apart == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("name", ["randomk", "blockrandomk", "bernoulli"])
def test_every_coordinate_is_drawn_equally_often(name: str) -> None:
    n, count = 50, 2000
    counts = torch.zeros(n)
    for step in range(count):
        found = build(name).compress(torch.ones(n), 10.0, KEY._replace(step=step), torch.float32).support
        assert found is not None
        assert found.unique().numel() == found.numel()
        counts[found] += 1
    expected = count * 5 / n
    assert float((counts - expected).abs().max()) < 4.5 * (expected * (1 - 5 / n)) ** 0.5
