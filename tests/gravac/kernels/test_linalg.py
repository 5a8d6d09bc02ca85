"""Scalars: floats on the host, tensors that nobody reads on a device, with equal values."""

import math

import pytest
import torch
from torch import Tensor

from gravac import kernels
from gravac.aggregators.shortfall import Shortfall
from gravac.kernels import treated_as_device

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


def test_a_shortfall_on_a_device_is_that_of_the_host() -> None:
    """Any energies, with steps that count and that do not, and CFs that were not sent."""
    host, device = Shortfall(0), Shortfall(0)
    steps = [
        (4.0, 2.0, 1.0, True),
        (9.0, 0.0, 1.0, True),
        (9.0, 3.0, math.nan, True),
        (50.0, 2.0, 1.9, False),
    ]
    steps += [
        (9.0, 3.0, 1.0, True),
        (4.0, math.inf, 1.0, True),
        (4.0, 2.0, 5.0, True),
        (9.0, 3.0, 2.0, False),
    ]
    for cf, chosen, through, counts in steps:
        host.record(cf, chosen, through)
        device.record(cf, torch.tensor(chosen).double(), torch.tensor(through).double())
        (host.commit if counts else host.rollback)()
        device.commit_where(torch.tensor(counts))
        for asked in (2.0, 4.0, 8.0, 60.0):
            assert float(host.expected(asked)) == float(device.expected(asked))
        assert {k: float(v) for k, v in host.state_dict().items()} == {
            k: float(v) for k, v in device.state_dict().items()
        }
