"""Scalars: floats on the host, tensors that nobody reads on a device, with equal values."""

import math

import pytest
import torch
from torch import Tensor

from gravac import kernels
from gravac.kernels import (
    energy,
    inner,
    treated_as_device,
)

VALUES = [0.0, 1e-30, 3.0, math.inf, math.nan]


def vector(poison: float | None = None) -> Tensor:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    if poison is not None:
        x[7] = poison
    return x


def same(found: object, expected: float) -> bool:
    assert isinstance(found, Tensor)
    assert (found.shape, found.dtype) == ((), torch.float64)
    return math.isclose(float(found), expected, rel_tol=1e-6) or (
        math.isnan(expected) and bool(found.isnan())
    )


@pytest.mark.parametrize("poison", [None, math.inf, math.nan])
def test_sums_are_floats_on_the_host_and_tensors_on_a_device(poison: float | None) -> None:
    x, y, places = vector(poison), vector(), torch.tensor([3, 7, 9], dtype=torch.int32)

    def all_() -> list[object]:
        counted = kernels.tally(x, y, out=torch.empty_like(x), sums=True)
        found = [kernels.energy(x), kernels.inner(x, y), kernels.inner_at(x, places, y[:3])]
        return [*found, counted.energy, counted.gradient_sq, counted.residual_dot_gradient]

    host = all_()
    assert all(type(number) is float for number in host)
    with treated_as_device():
        device = all_()
    assert all(same(one, other) for one, other in zip(device, host, strict=True))  # type: ignore[arg-type]
    assert type(kernels.energy(x)) is float


def test_meta_tensors_are_on_a_device() -> None:
    assert not kernels.on_device(vector())
    x = torch.empty(10, device="meta")
    assert kernels.on_device(x)
    assert isinstance(kernels.energy(x), Tensor)


@pytest.mark.parametrize("inner", VALUES)
@pytest.mark.parametrize("energy", VALUES)
def test_the_alignment_is_the_same(energy: float, inner: float) -> None:
    host = kernels.alignment(energy, inner)
    assert isinstance(host, float)
    device = kernels.alignment(
        torch.tensor(energy, dtype=torch.float64), torch.tensor(inner, dtype=torch.float64)
    )
    assert same(device, host)


def test_energy_distinguishes_overflow_from_infinity() -> None:
    assert energy(torch.full((10,), 1e25)) == pytest.approx(1e51)
    assert not math.isfinite(energy(torch.tensor([1.0, math.inf])))
    assert math.isnan(energy(torch.tensor([1.0, math.nan])))
    assert inner(torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0])) == -5.0


def test_energy_of_tiny_numbers_is_not_lost() -> None:
    assert energy(torch.full((10,), 1e-25)) == pytest.approx(1e-49)
    assert energy(torch.zeros(10)) == 0.0
