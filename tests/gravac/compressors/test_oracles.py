"""Known numbers: the lecture vector through every codec, and bytes."""

import pytest
import torch

from gravac.compressors import build
from tests.support.maths.checks import COPIES, ENERGY, LECTURE, TILED, sent


@pytest.mark.parametrize(
    ("text", "small", "large"),
    [
        ("dense", 4000, 4194304),
        ("topk", 40 + 12, 4 * 10485 + 11223),
        ("randomk", 40, 41940),
        ("blockrandomk", 40, 41940),
        ("scaledsign", 129, 131076),
        ("onebit", 133, 131080),
        ("terngrad", 254, 262148),
        ("terngrad:base3=true", 204, 209720),
        ("qsgd:bits=2", 258, 270336),
        ("qsgd:bits=4", 508, 532480),
        ("qsgd:bits=8", 1008, 1056768),
        ("natural", 1000, 1048576),
        ("natural:bits=9", 1125, 1179648),
        ("bf16", 2000, 2097152),
        ("topk+int8", 12 + 10 + 4, 11223 + 10485 + 4 * 41),
        ("randomk+int8", 10 + 4, 10485 + 4 * 41),
    ],
)
def test_bytes(text: str, small: int, large: int) -> None:
    assert build(text).wire_bytes(1000, 100.0, torch.float32) == small
    assert build(text).wire_bytes(2**20, 100.0, torch.float32) == large


@pytest.mark.parametrize(
    ("text", "variance"),
    [
        ("terngrad", 11817.0),
        ("terngrad:base3=true", 11817.0),
        ("qsgd:bits=2,norm=l2,block=8", 15911.843),
        ("qsgd:bits=4,norm=l2,block=8", 0.0269841 * ENERGY),
        ("qsgd:bits=8,norm=l2,block=8", 6.8027e-5 * ENERGY),
        ("qsgd:bits=2,norm=linf,block=8", 0.5539305 * ENERGY),
        ("qsgd:bits=4,norm=linf,block=8", 0.0184183 * ENERGY),
        ("int4:block=8", 0.0184183 * ENERGY),
        ("qsgd-elias:bits=4,norm=l2,block=8", 0.0269841 * ENERGY),
        ("nuqsgd:bits=2,block=8", 15911.843),
        ("nuqsgd:bits=3,block=8", 0.1157444 * ENERGY),
        ("nuqsgd:bits=4,block=8", 0.0654314 * ENERGY),
        ("natural", 581.0),
        ("natural:bits=9", 581.0),
    ],
)
def test_variance_of_quantizers(text: str, variance: float) -> None:
    codec = build(text)
    decoded = sent(codec, TILED).view(COPIES, 8)
    errors = (decoded - LECTURE).square().sum(1)
    assert abs(float(errors.mean()) - variance) < 4.5 * float(errors.std()) / COPIES**0.5 < 0.12 * variance
    off = (decoded.mean(0) - LECTURE).abs() / (decoded.std(0) / COPIES**0.5).clamp_min(1e-9)
    assert float(off.max()) < 4.5
    limit = codec.bound(8, 1.0).limit(ENERGY)
    assert limit is not None
    assert variance <= limit


@pytest.mark.parametrize(
    ("text", "omega"),
    [("int8", 0.0040), ("int4", 0.163), ("qsgd:bits=2", 22.63), ("natural", 0.125), ("terngrad", 499.5)],
)
def test_bounds_by_number(text: str, omega: float) -> None:
    assert build(text).bound(10**6, 1.0).omega == pytest.approx(omega, rel=0.01)
