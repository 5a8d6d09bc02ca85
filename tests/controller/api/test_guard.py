"""Rates of requests: buckets fill steadily, allow bursts, and are bounded in number."""

import pytest

from gravac_controller.api.guard import MOST_KEYS, RateLimits

pytestmark = pytest.mark.distributed


def test_a_bucket_fills_steadily_and_allows_bursts() -> None:
    clock = [100.0]
    rates = RateLimits(2.0, lambda: clock[0])
    assert [rates.take("a") for _ in range(20)] == [0.0] * 20
    assert rates.take("a") == pytest.approx(0.5)
    assert rates.take("b") == 0.0
    clock[0] += 0.5
    assert rates.take("a") == 0.0
    assert rates.take("a") > 0
    clock[0] += 1e6
    assert [rates.take("a") for _ in range(20)] == [0.0] * 20
    assert rates.take("a") > 0


def test_buckets_are_bounded_in_number() -> None:
    rates = RateLimits(1.0, lambda: 0.0)
    while rates.take("busy") == 0:
        pass
    for number in range(MOST_KEYS - 1):
        rates.take(str(number))
    assert rates.take("busy") > 0  # still known
    for number in range(MOST_KEYS):
        rates.take(str(number))
    assert rates.take("busy") == 0
