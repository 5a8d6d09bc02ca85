"""The gain of a step, and its average over steps."""

import pytest

from gravac.signals.gain import GainTracker, gain


def test_gain_of_one_step() -> None:
    assert gain(3.0, 4.0) == 0.75
    assert gain(0.0, 4.0) == 0.0
    assert gain(4.0000001, 4.0) == 1.0
    assert gain(0.0, 0.0) is None
    assert gain(0.0, float("nan")) is None


def test_ratio_of_averages_not_average_of_ratios() -> None:
    tracker = GainTracker(0.5)
    tracker.update(10.0, 1.0, 1.0)
    tracker.update(10.0, 10.0, 1000.0)
    assert tracker.gain(10.0) == pytest.approx((0.5 * 1 + 0.5 * 10) / (0.5 * 1 + 0.5 * 1000))
    tracker.update(10.0, 0.0, 0.0)  # a step without gradient changes nothing
    assert tracker.gain(10.0) == pytest.approx(5.5 / 500.5)


def test_unmeasured_dense_and_forgotten() -> None:
    tracker = GainTracker(0.1)
    assert tracker.gain(1.0) == 1.0
    assert tracker.gain(20.0) is None
    tracker.update(20.0, 1.0, 2.0)
    tracker.update(40.0, 1.0, 4.0)
    assert tracker.gains() == {20.0: 0.5, 40.0: 0.25}
    tracker.update(40.0, 1.0, 8.0, codec=1)
    assert (tracker.gains(1), tracker.gain(20.0, 1)) == ({40.0: 0.125}, None)
    tracker.forget_except(frozenset({(0, 40.0)}))
    assert (tracker.gain(40.0), tracker.gain(40.0, 1)) == (0.25, None)
    assert tracker.gain(20.0) is None
