"""Sums and scattered additions by Triton's kernels."""

import math

import pytest
import torch
from torch import Tensor

from gravac import kernels
from tests.support.maths.backends import vector
from tests.support.maths.triton_device import DTYPES, LARGE, Place, alike, triton


@pytest.mark.parametrize("dtype", DTYPES)
def test_payloads_add_up(dtype: torch.dtype) -> None:
    for count, wide in ((0, True), (5, False), (150, True)):
        places = torch.randperm(300, generator=torch.Generator().manual_seed(count))[:count]
        places, values = places if wide else places.int(), vector(count, 5, "wild").to(dtype)
        alike(lambda put, p=places, v=values: added(put, torch.ones(300), p, v, 0.3))
    twice = torch.tensor([3, 1, 3, 3, 299]).repeat(30)
    small = torch.arange(150.0).to(dtype)  # sums that every order of adding gives exactly
    alike(lambda put: added(put, torch.ones(300), twice, small, 0.5))


def added(put: Place, out: Tensor, places: Tensor, values: Tensor, scale: float) -> Tensor:
    mine = put(out)
    kernels.scatter_add(mine, put(places), put(values), scale)
    return mine


@pytest.mark.parametrize("bad", [-1, 300, 2**31 - 1])
def test_a_place_outside_shows(bad: int) -> None:
    places = torch.tensor([2, 7, bad], dtype=torch.int32)
    out = triton(lambda put: added(put, torch.zeros(300), places, torch.ones(3), 1.0))
    assert out[0].isnan()
    assert out[1:].tolist() == [0, 1, 0, 0, 0, 0, 1, *[0] * 292]


def test_products_lose_nothing() -> None:
    for n, other in ((0, torch.float32), (300, torch.float32), (700, torch.bfloat16)):
        x, y = vector(n, 1, "mixed"), vector(n, 2, "normal").to(other)
        mine = triton(lambda put, x=x, y=y: kernels.product(put(x), put(y)))
        assert mine.dtype == torch.float64
        terms = (x.double() * y.double()).tolist()
        assert float(mine) == pytest.approx(math.fsum(terms), rel=1e-12)
        assert triton(lambda put, x=x: torch.tensor(kernels.energy(put(x)))) == pytest.approx(
            math.fsum((x.double() ** 2).tolist()), rel=1e-6
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", [True, False])
def test_a_step_is_undone_unless_it_counts(kept: bool, dtype: torch.dtype) -> None:
    for n in (0, 1, 700, *LARGE):
        out, x = vector(n, n, "mixed"), vector(n, n + 1, "wild").to(dtype)

        def run(put: Place, out: Tensor = out, x: Tensor = x) -> Tensor:
            mine = put(out)
            kernels.subtract_unless(put(torch.tensor(kept)), mine, put(x))
            return mine

        found = alike(run)
        assert torch.equal(found, out) == (kept or not n)
