"""Sums of a step by Triton's kernels."""

import math

import pytest
import torch

from gravac.kernels.device import step_sums
from tests.support.maths.backends import on
from tests.support.maths.triton_device import DTYPES, HERE


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "every"), [(7, 1), (5000, 3)])
def test_signed_sums(dtype: torch.dtype, n: int, every: int) -> None:
    x = torch.randn(n).to(dtype)
    signs = torch.randint(0, 2, (16, -(-len(x[::every]) // 16))).float() * 2.0 - 1.0
    found = []
    for use, where in (("reference", torch.device("cpu")), ("cuda", HERE)):
        with on(use):
            sums = torch.ones(17, dtype=torch.float64, device=where)
            step_sums.signed(x.to(where), signs.to(where), every, sums)
            found.append(sums.cpu())
    assert torch.allclose(*found, rtol=1e-12)
    assert found[0][16] == pytest.approx(1.0 + every * float(x[::every].double().square().sum()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_a_step(dtype: torch.dtype) -> None:
    for bad in (None, math.inf):
        rows, vectors = [], []
        for use, where in (("reference", torch.device("cpu")), ("cuda", HERE)):
            with on(use):
                x = torch.linspace(-1.0, 1.0, 700).to(dtype)
                if bad:
                    x[3] = bad
                table = torch.zeros(3, step_sums.ROW, dtype=torch.float64, device=where)
                step_sums.square(x.to(where), table[1])
                table[2] = torch.tensor([4.0, 9.0, 2.0, 3.0, 1.0, 0.5], device=where)
                vector = torch.arange(13.0, dtype=torch.float64, device=where)
                vector[7:10] = 0.0
                step_sums.add_rows(table, vector, 11, 9)
                rows.append(table.cpu())
                vectors.append(vector.cpu())
        assert torch.allclose(*vectors, rtol=1e-12)
        assert vectors[0][7] == (1.0 if bad else 0.0)
        assert bool(bad) == (vectors[0][0] == 0.0)
        assert not rows[0].any()
        assert not rows[1].any()
