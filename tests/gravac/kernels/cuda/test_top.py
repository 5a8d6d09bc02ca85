"""Taking the largest elements by Triton's kernels."""

import pytest
import torch
from torch import Tensor

from gravac import kernels
from tests.support.maths.backends import vector
from tests.support.maths.triton_device import KINDS, LARGE, Place, alike, triton


def taken(x: Tensor, k: int, clear: bool) -> None:
    def run(put: Place) -> tuple[Tensor, ...]:
        mine = put(x)
        return *kernels.take_top(mine, k, clear=clear), mine

    alike(run)


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_are_taken_and_zeros_left(kind: str) -> None:
    many = [(n, k) for n in LARGE for k in (30_000, 1_000_000)]
    few = ((300, 150), (257, 256)) if kind == "wild" else ((600, 6), (900, 1))
    for n, k in ((1, 1), (33, 32), *few, *many):
        taken(vector(n, n + k, kind), k, clear=k != 150)


def test_ties_go_to_the_lowest_places() -> None:
    generator = torch.Generator().manual_seed(0)
    sparse = torch.zeros(400)
    sparse[torch.randperm(400, generator=generator)[:20]] = torch.randn(20, generator=generator)
    taken(sparse, 60, clear=True)  # zeros too must be taken
    taken(torch.full((260,), -0.3), 120, clear=True)
    taken(torch.randn(500, generator=generator).bfloat16().float(), 61, clear=True)  # eight sizes in a bin
    taken(1.0 + torch.rand(200, generator=generator) / 16, 70, clear=True)  # all in one bin
    taken(torch.tensor([1.0, -1.0, torch.inf, torch.nan, -torch.nan, -torch.inf]).repeat(30), 99, clear=True)


def test_a_second_level_comes_from_the_first_ones_values() -> None:
    x = vector(900, 4, "mixed")

    def run(put: Place) -> tuple[Tensor, ...]:
        mine = put(x)
        hint = kernels.tally(mine)
        places, values = kernels.take_top(mine, 400, hint)
        return places, *kernels.take_top(values, 50, hint)

    alike(run)


def test_the_tally_of_another_tensor_takes_nothing_and_shows() -> None:
    """No error is raised, because that would wait, so the values must not pass for a gradient."""
    x = vector(1000, 1, "normal")
    for other in (vector(1000, 2, "normal") * 1e6, torch.zeros(1000), x[:300], x * 2):

        def run(put: Place, other: Tensor = other) -> tuple[Tensor, ...]:
            mine = put(x)
            return *kernels.take_top(mine, 400, kernels.tally(put(other)), clear=True), mine

        places, values, left = triton(run)
        assert torch.equal(left, x)
        assert values.isnan().all()
        assert places.tolist() == list(range(400))
