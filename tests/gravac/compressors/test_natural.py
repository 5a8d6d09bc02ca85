"""Natural compression on the lecture vector."""

import torch

from gravac.compressors import build
from tests.support.maths.checks import COPIES, LECTURE, TILED, sent


def test_natural_coordinates() -> None:
    decoded = sent(build("natural"), TILED).view(COPIES, 8)
    errors = (decoded - LECTURE).square()
    off = errors.mean(0) - torch.tensor([1.0, 0, 252, 3, 7, 192, 63, 63])
    assert (off.abs() <= 4.5 * errors.std(0) / COPIES**0.5).all()
    powers = torch.tensor([0.0, 1.0, -2.0, 0.125, 2.0**-100])
    assert torch.equal(sent(build("natural"), powers), powers.double())
