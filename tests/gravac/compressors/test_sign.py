"""Why a sign needs a scale and a memory: two known counter-examples, and what feedback makes of them."""

from collections.abc import Callable

import torch
from torch import Tensor

from gravac.compressors import build
from tests.support.maths.checks import KEY

SIGN = build("scaledsign")


def descend(
    gradient: Callable[[Tensor], Tensor],
    start: Tensor,
    rate: Callable[[int], float],
    steps: int,
    feedback: bool,
) -> Tensor:
    """SGD with the bare sign (step of size ``rate``), or with the scaled sign and error feedback inside the rate."""
    x, residual = start.clone(), torch.zeros_like(start)
    for step in range(steps):
        if feedback:
            p = rate(step) * gradient(x) + residual
            payload = SIGN.compress(p, 1.0, KEY, torch.float32)
            x = x - SIGN.decode(payload)
            SIGN.remove(payload, p)
            residual = p
        else:
            payload = SIGN.compress(gradient(x), 1.0, KEY, torch.float32)
            x = x - rate(step) * torch.where(SIGN.decode(payload) >= 0, 1.0, -1.0)
    return x


def test_karimireddys_counter_example() -> None:
    """f = ε|x1 + x2| + |x1 - x2|: the sign never moves x1 + x2."""

    def gradient(x: Tensor) -> Tensor:
        one, two = torch.where(x.sum() >= 0, 0.5, -0.5), torch.where(x[0] - x[1] >= 0, 1.0, -1.0)
        return torch.stack((one + two, one - two))

    def value(x: Tensor) -> float:
        return float(0.5 * x.sum().abs() + (x[0] - x[1]).abs())

    start = torch.tensor([1.05, 0.97])
    bare = descend(gradient, start, lambda t: 0.1 / (t + 1) ** 0.5, 2000, feedback=False)
    fed = descend(gradient, start, lambda t: 0.1 / (t + 1) ** 0.5, 4000, feedback=True)
    assert abs(float(bare.sum()) - 2.02) < 1e-3
    assert value(bare) >= 1.0
    assert value(fed) < 0.01


def test_least_squares_with_positive_rows() -> None:
    """Every gradient has one sign throughout, so signSGD never leaves the line of equal coordinates."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(6, 6, generator=generator) + 0.1
    right = torch.randn(6, generator=generator)

    def residual(x: Tensor) -> float:
        return float((rows @ x - right).square().mean())

    picks = torch.randint(6, (4000,), generator=generator).tolist()

    def run(feedback: bool) -> Tensor:
        step = iter(picks)

        def gradient(x: Tensor) -> Tensor:
            row = next(step)
            return (rows[row] @ x - right[row]) * rows[row]

        return descend(gradient, torch.zeros(6), lambda t: 0.05, 4000, feedback)

    bare, fed = run(False), run(True)
    assert float((bare - bare.mean()).abs().max()) < 1e-4
    assert residual(fed) < residual(bare) / 2
