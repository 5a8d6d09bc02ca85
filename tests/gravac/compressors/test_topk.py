"""Top-k on the lecture vector."""

import pytest

from gravac.compressors import build
from tests.support.maths.checks import ENERGY, LECTURE, error, gain


@pytest.mark.parametrize(
    ("k", "share", "missed"),
    [(1, 0.7921999, None), (2, 0.9392022, 1297), (3, 0.9684995, 672), (4, 0.9932968, 143)],
)
@pytest.mark.parametrize("name", ["topk", "redsync-trimmed"])
def test_topk(name: str, k: int, share: float, missed: int | None) -> None:
    assert gain(build(name), LECTURE, 8 / k) == pytest.approx(share, abs=1e-7)
    assert missed is None or error(build(name), LECTURE, 8 / k) == missed
    limit = build(name).bound(8, 8 / k).limit(ENERGY)
    assert limit == pytest.approx((1 - k / 8) * ENERGY)
