"""Why a sign needs a scale and a memory: two known counter-examples, and what feedback makes of them."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gravac.compressors import build
from gravac.compressors.base import Compressor
from tests.support.maths.checks import ENERGY, KEY, LECTURE, gain, sent, vector

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


POSITIVE = LECTURE.abs()


def error(codec: Compressor, x: Tensor, cf: float = 1.0) -> float:
    return float((sent(codec, x, cf) - x.double()).square().sum())


def test_scaled_sign() -> None:
    codec = build("scaledsign")
    assert codec.compress(POSITIVE, 1.0, KEY, torch.float32).values.tolist() == [31.875]
    for x in (LECTURE, POSITIVE):
        assert gain(codec, x) == pytest.approx(0.3810118, abs=1e-7)
        assert error(codec, x) == pytest.approx(13204.875)
    assert gain(codec, vector("gauss", 2**18)) == pytest.approx(2 / math.pi, rel=0.01)
    # The other public scale, l2 / √n, always has gain 1 and loses twice as much here.
    rescaled = sent(codec, LECTURE).sign() * math.sqrt(ENERGY / 8)
    assert float((rescaled - LECTURE).square().sum() / ENERGY) == pytest.approx(0.7654769, abs=1e-7)
    assert torch.equal(sent(build("onebit"), POSITIVE), sent(codec, POSITIVE))
    assert error(build("onebit"), LECTURE) < error(codec, LECTURE)


def test_zeros_count_as_positive() -> None:
    assert sent(build("scaledsign"), torch.tensor([0.0, -0.0, -2.0])).sign().tolist() == [1, 1, -1]
