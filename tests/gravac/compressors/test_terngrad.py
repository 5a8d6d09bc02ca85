"""TernGrad on the lecture vector, and its variance."""

import pytest
import torch

from gravac.compressors import build
from tests.support.maths.checks import COPIES, ENERGY, KEY, LECTURE, TILED, sent

POSITIVE = LECTURE.abs()


def test_terngrad() -> None:
    decoded = sent(build("terngrad"), TILED)
    assert float((decoded != 0).sum()) / COPIES == pytest.approx(1.9615385, rel=0.02)
    assert float(decoded.square().sum()) / COPIES / ENERGY == pytest.approx(1.5539305, rel=0.02)
    clipped = build("terngrad-clipped").compress(POSITIVE, 1.0, KEY, torch.float32)
    assert clipped.values.tolist() == pytest.approx([101.5692], abs=1e-4)
    layers = build("terngrad").fitted(((2, 2), (4,))).compress(POSITIVE, 1.0, KEY, torch.float32)
    assert layers.values.tolist() == [130, 56]
