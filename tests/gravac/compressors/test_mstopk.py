"""MSTopk sends exactly k elements, nearly the largest."""

import pytest
import torch

from gravac.compressors import build
from gravac.compressors.base import kept_count
from tests.support.maths.checks import KEY, gain, vector


@pytest.mark.parametrize("kind", ["gauss", "heavy", "student"])
@pytest.mark.parametrize("cf", [4.0, 30.0, 300.0])
def test_it_keeps_nearly_the_energy_of_topk(kind: str, cf: float) -> None:
    x = vector(kind, 10_000)
    for codec in (build("mstopk"), build("mstopk:rounds=3")):
        assert codec.compress(x, cf, KEY, torch.float32).values.numel() == kept_count(10_000, cf)
    assert 0.99 * gain(build("topk"), x, cf) < gain(build("mstopk"), x, cf)


def test_the_run_that_completes_k_begins_elsewhere_on_each_rank() -> None:
    """At a low CF it is drawn from all elements below the mean, here from 90 equal ones."""
    x = torch.cat([torch.full((10,), 9.0), torch.ones(90)])
    found = [build("mstopk").compress(x, 5.0, KEY._replace(rank=rank), torch.float32) for rank in range(4)]
    supports = [payload.support.tolist() for payload in found if payload.support is not None]
    assert all(support[:10] == list(range(10)) and len(support) == 20 for support in supports)
    assert all(support[-1] - support[10] == 9 for support in supports)
    assert len(set(map(tuple, supports))) > 1


def test_of_ties_at_the_maximum_k_are_sent() -> None:
    """No threshold lets at most 5 pass, and a single round ends far below: with 20 others that are nearly as large."""
    x = torch.cat([torch.tensor([2.9, -3.0]).repeat(20), torch.zeros(60)])
    for text in ("mstopk:rounds=1", "mstopk"):
        assert build(text).compress(x, 20.0, KEY, torch.float32).values.tolist() == [-3.0] * 5
