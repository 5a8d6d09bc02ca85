"""The best approximation of a low rank."""

import pytest
import torch
from torch import Tensor

from gravac.compressors.base import Compressor
from gravac.compressors.lowrank.svd import SVD
from tests.support.maths.checks import ENERGY, KEY, LECTURE, sent, vector

POSITIVE = LECTURE.abs()


def gain(codec: Compressor, x: Tensor, cf: float = 1.0) -> float:
    return float(sent(codec, x, cf).square().sum() / x.double().square().sum())


@pytest.mark.parametrize("shape", [(2, 4), (4, 2)])
def test_svd(shape: tuple[int, int]) -> None:
    expected = {(2, 4): 133.768215, (4, 2): 133.774900}[shape] ** 2 / ENERGY
    assert gain(SVD().fitted([shape]), POSITIVE, 1.3) == pytest.approx(expected, abs=1e-6)
    if shape == (2, 4):
        assert expected == pytest.approx(0.8387913, abs=1e-7)


def test_rank_4_of_noise() -> None:
    codec, x = SVD().fitted([(512, 512)]), vector("gauss", 512 * 512)
    decoded = codec.decode(codec.compress(x, 64.0, KEY, torch.float32)).double()
    assert float(decoded.square().sum() / x.double().square().sum()) == pytest.approx(0.030, rel=0.03)
    assert codec.reached(512 * 512, 64.0) == 64.0
