"""QSGD on the lecture vector."""

import pytest

from gravac.compressors import build
from tests.support.maths.checks import COPIES, ENERGY, TILED, sent


def test_one_level_of_l2_is_the_lectures_ternary() -> None:
    decoded = sent(build("qsgd:bits=2,norm=l2,block=8"), TILED)
    assert float((decoded != 0).sum()) / COPIES == pytest.approx(1.7458793, rel=0.02)
    assert float(decoded.square().sum()) / COPIES / ENERGY == pytest.approx(1.7458793, rel=0.02)
