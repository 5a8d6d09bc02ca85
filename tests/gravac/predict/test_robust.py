"""Linear regression with outliers."""

import pytest

from gravac.predict import robust

ONES = [1.0] * 8


def rows() -> list[tuple[float, float]]:
    return [(1.0, float(x)) for x in range(8)]


def test_a_line() -> None:
    values = [3.0 + 2.0 * x for _, x in rows()]
    line = robust.fit(rows(), values, ONES, ONES)
    assert line.terms == pytest.approx((3.0, 2.0))
    assert line.spread == pytest.approx(0.0, abs=1e-9)


def test_one_point_far_off_is_left_aside() -> None:
    values = [3.0 + 2.0 * x + 0.01 * (-1) ** int(x) for _, x in rows()]
    values[5] += 100.0
    assert robust.fit(rows(), values, ONES, ONES).terms == pytest.approx((3.0, 2.0), abs=0.05)


def test_no_term_is_below_zero() -> None:
    """The other one is fitted as if the column were not there."""
    values = [10.0 - 1.0 * x for _, x in rows()]
    constant, slope = robust.fit(rows(), values, ONES, ONES).terms
    assert slope == 0.0
    assert constant == pytest.approx(6.5, abs=0.1)


def test_columns_that_say_the_same_do_not_break_it() -> None:
    double = [(1.0, 1.0, x) for _, x in rows()]
    line = robust.fit(double, [3.0 + 2.0 * x for _, x in rows()], ONES, ONES)
    assert sum(line.terms[:2]) == pytest.approx(3.0)


def test_columns_of_very_different_size() -> None:
    wide = [(1.0, 1e9 * x) for _, x in rows()]
    line = robust.fit(wide, [0.1 + 1e-3 * x for _, x in rows()], ONES, ONES)
    assert line.terms == pytest.approx((0.1, 1e-12))


def test_errors_count_by_their_scale() -> None:
    """Two points that disagree: the one with the smaller scale wins."""
    line = robust.fit([(1.0,), (1.0,)], [1.0, 2.0], [0.001, 1.0], [1.0, 1.0])
    assert line.terms[0] == pytest.approx(1.0, abs=0.01)
