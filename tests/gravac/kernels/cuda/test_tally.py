"""Counting by Triton's kernels, with the residual added in the same pass."""

import pytest
import torch
from torch import Tensor

from gravac import kernels
from tests.support.maths.backends import on, same, vector
from tests.support.maths.triton_device import DTYPES, KINDS, LARGE, SHIPPED, Place, alike, module, triton


def whatever_nan(counts: Tensor) -> Tensor:
    """Return counts with all NaN in one bin: a CPU and a GPU make different ones of inf - inf."""
    first = (0x7F800000 >> 19) + 1
    return torch.cat([counts[:first], counts[first:].sum(0, keepdim=True)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_residual_is_added_and_all_is_counted(dtype: torch.dtype, kind: str) -> None:
    for n in (0, 1, 129, 500, *LARGE):
        g, e = vector(n, n, kind).to(dtype), vector(n, n + 1, kind)

        def run(put: Place, g: Tensor = g, e: Tensor = e) -> tuple[Tensor, ...]:
            out = put(torch.full_like(e, 7.0))
            found = kernels.tally(put(g), put(e), share=0.3, out=out, sums=True)
            assert found.products is not None
            return out, whatever_nan(found.counts), found.energies, found.products

        mine = triton(run)
        with on("reference"):
            theirs = run(Tensor.clone)
        same(mine[:2], theirs[:2])
        # As promised: bin 0 is taken as nothing, and 1 to 15 hold numbers below the normal ones.
        assert not mine[2][0]
        error = (mine[2] - theirs[2]).abs()
        assert (error[1:16] <= 2.0**-15 * theirs[2][1:16]).all()
        assert (error[16:] <= 2.0**-23 * theirs[2][16:]).all()
        assert torch.allclose(mine[3], theirs[3], rtol=2.0**-23, equal_nan=True)
        assert torch.allclose(mine[3], theirs[3], rtol=1e-12, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_over_the_residual_elements_that_are_not_finite_count_as_nothing(dtype: torch.dtype) -> None:
    for n in (1, 500, *LARGE):
        g, e = vector(n, n, "wild").to(dtype), vector(n, n + 1, "normal")

        def run(put: Place, g: Tensor = g, e: Tensor = e) -> tuple[Tensor, ...]:
            p = put(e)
            found = kernels.tally(put(g), p, out=p, sums=True)
            assert found.products is not None
            return p, found.counts, found.products

        mine = triton(run)
        with on("reference"):
            theirs = run(Tensor.clone)
        same(mine[:2], theirs[:2])
        assert bool(mine[0].isfinite().all())
        assert bool(mine[2][0].isfinite()) == bool(g.isfinite().all())


def test_what_is_counted_is_copied_or_left() -> None:
    x = vector(300, 3, "wild")

    def run(put: Place) -> tuple[Tensor, ...]:
        mine, copy = put(x), put(torch.empty(300))
        first = kernels.tally(mine, out=copy).counts
        again = kernels.tally(mine, mine, share=0.5, out=mine).counts
        return mine, copy, *map(whatever_nan, (first, again, kernels.tally(copy).counts))

    alike(run)


def test_a_table_holds_what_is_put_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one bin, the largest significand: neither the count nor the sum beside it runs into the other."""
    assert SHIPPED["tally"]["BLOCK"] * SHIPPED["tally"]["BLOCKS_A_TABLE"] < 2**20
    monkeypatch.setattr(module("tally"), "BLOCK", 1 << 18)
    monkeypatch.setattr(module("tally"), "BLOCKS_A_TABLE", 3)
    x = torch.full((3 << 18,), 1.9999999)
    counts, energies = triton(
        lambda put: (lambda found: (found.counts, found.energies))(kernels.tally(put(x)))
    )
    place = (127 << 4) | 15
    assert int(counts[place]) == x.numel()
    assert float(energies.sum()) == pytest.approx(float(x[0].double() ** 2) * x.numel(), rel=2.0**-23)
