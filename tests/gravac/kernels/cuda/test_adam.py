"""A step of Adam by age by Triton's kernels."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from gravac import kernels
from gravac.optim.adam import aged_rule
from tests.support.maths.backends import vector
from tests.support.maths.triton_device import DTYPES, LARGE, Place, alike


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("growth", [1.0, 0.37, 50.0])
@pytest.mark.parametrize("skip", [0.0, 1.0])
def test_a_step_by_age(skip: float, growth: float, dtype: torch.dtype) -> None:
    table = aged_rule(0.9, 0.999, True, torch.float32, torch.device("cpu"))
    rates = torch.tensor([3e-3, 1e-8, 0.99, 0.1, skip])
    for n in (0, 1, 300, *LARGE):
        p, g, m, v = (vector(n, n + seed, "normal").to(dtype) for seed in range(4))
        age = (vector(n, n, "normal").abs() * 9000 + 128).clamp(max=32767).to(torch.int16)
        v, arrived = v.abs(), p > 0.5
        masks = (None, arrived, arrived + (p > 1.0).to(torch.uint8))
        for mask, nonzero in itertools.product(masks, (False, True)):
            given = g * (m > 0.3) if nonzero else g

            def run(
                put: Place,
                mask: Tensor | None = mask,
                own: Any = (p, given, m, v, age),
                nonzero: bool = nonzero,
            ) -> Any:
                mine = tuple(put(each) for each in own)
                sent = None if mask is None else put(mask)
                kernels.step_aged(*mine, sent, put(table), put(rates), 0.9, 0.5, growth, nonzero)
                return mine

            alike(run)
