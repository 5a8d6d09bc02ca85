"""Known numbers: what codecs keep of normal data and of heavy tails, as it was measured elsewhere."""

import math

import pytest
import torch

from gravac.compressors import build
from tests.support.maths.checks import KEY, draws, vector

NORMAL = vector("gauss", 2**18)
STUDENT = vector("student", 2**18)


@pytest.mark.parametrize(
    ("text", "cf", "gauss", "student", "cf_bytes"),
    [
        # gain and alignment on normal data, gain and alignment on Student's t with 3 degrees of freedom
        ("topk", 10, (0.440, 0.440), (0.705, 0.705), 8.59),
        ("topk", 100, (0.085, 0.085), (0.350, 0.350), 78.9),
        ("randomk-unbiased", 10, (10.2, 0.102), (9.5, 0.095), 10),
        ("scaledsign", 1, (0.637, 0.637), (0.411, 0.411), 32),
        ("terngrad", 1, (3.79, 0.267), None, 16),
        ("terngrad-clipped", 1, (1.99, 0.493), (1.51, 0.385), 16),
        ("qsgd:bits=4,norm=l2", 1, (2.57, 0.387), (2.24, 0.440), 7.88),
        ("qsgd:bits=4", 1, (1.037, 0.965), (1.27, 0.792), 7.88),
        ("qsgd:bits=8", 1, (1.0001, 0.9999), (1.001, 0.999), 3.97),
        ("nuqsgd:bits=4", 1, (1.081, 0.920), (1.089, 0.917), 7.88),
        ("natural", 1, (1.083, 0.925), (1.088, 0.924), 4),
        ("countsketch", 10, (10.0, 0.100), (10.0, 0.100), 10),  # 10.9 and 0.091 with independent hashes
    ],
)
def test_gain_and_alignment(
    text: str, cf: float, gauss: tuple[float, float], student: tuple[float, float] | None, cf_bytes: float
) -> None:
    """Gains of unbiased codecs exceed 1 and would always pass a gate; the alignment does not."""
    codec = build(text)
    assert 4 * 2**18 / codec.wire_bytes(2**18, cf, torch.float32) == pytest.approx(cf_bytes, rel=0.01)
    for x, expected in ((NORMAL, gauss), (STUDENT, student)):
        if expected is None:
            continue
        payload = codec.compress(x, cf, KEY, torch.float32)
        energy = float(x.double().square().sum())
        # Another sample than the one that was measured, and heavy tails vary.
        assert codec.energy(payload) / energy == pytest.approx(expected[0], rel=0.03 if x is NORMAL else 0.15)
        assert codec.kept_energy(payload, x) / energy == pytest.approx(
            expected[1], rel=0.03 if x is NORMAL else 0.15
        )


@pytest.mark.parametrize(
    ("text", "n", "omega"),
    [
        ("qsgd:bits=2,norm=l2,block=1000000", 2**18, math.sqrt(2 * 2**18 / math.pi) - 1),  # l1/l2 - 1
        ("qsgd:bits=8,norm=l2", 2**18, 0.0053),
        ("natural", 2**16, 0.081),
    ],
)
def test_measured_variance_on_normal_data(text: str, n: int, omega: float) -> None:
    x = vector("gauss", n)
    error = (draws(build(text), x, 1.0, 10) - x.double()).square().sum(1).mean()
    assert float(error / x.double().square().sum()) == pytest.approx(omega, rel=0.05)
