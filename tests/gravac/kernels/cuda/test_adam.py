"""A step of Adam by age by Triton's kernels."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from gravac import kernels
from gravac.kernels.cuda import adam
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
                aged = kernels.AgedStep(*mine, sent, 0.5, growth, nonzero)
                kernels.step_aged([aged], put(table), put(rates)[None], 0.9)
                return mine

            alike(run)


def test_many_parameters_in_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several types and shapes, each with its own rates, share and growth, and whose senders are known or not."""
    launched: list[str] = []
    launch = adam.launch

    def counted(kernel: Any, *arguments: Any, **options: Any) -> Any:
        launched.append(options["DTYPE"])
        return launch(kernel, *arguments, **options)

    monkeypatch.setattr(adam, "launch", counted)
    table = aged_rule(0.9, 0.999, False, torch.float32, torch.device("cpu"))
    rates = torch.tensor([[3e-3 + k, 1e-8, 0.99, 0.1, float(k == 4)] for k in range(7)])
    sizes = [1, 700, 64, 0, 129, 300, 5]

    def run(put: Place) -> Any:
        steps, own = [], []
        for k, n in enumerate(sizes):
            dtype = torch.bfloat16 if k == 5 else torch.float32
            p, g, m, v = (put(vector(n, n + k + seed, "normal").to(dtype)) for seed in range(4))
            age = put((vector(n, n, "normal").abs() * 9000 + 128).clamp(max=32767).to(torch.int16))
            senders = put(p > 0.2) if k % 2 else None
            own += [p, m, v.abs_(), age]
            steps.append(kernels.AgedStep(p, g, m, v, age, senders, 1 / (k + 1), 1.0 + k % 3))
        kernels.step_aged(steps, put(table), put(rates), 0.9)
        return tuple(own)

    alike(run)
    assert len(launched) == 2, "one for each type"
