"""Statistical efficiency, retained value and times to target, on curves whose answers are plain."""

import pytest

from gravac_lab.tournament import LossCurve, efficiency, retained_value, target_level
from gravac_lab.tournament.curves import levels, seconds_to

DENSE = LossCurve((20, 40, 60, 80, 100), (5.0, 4.0, 3.0, 2.0, 1.0))


def slower(times: float) -> LossCurve:
    """A curve that needs so many times the steps of ``DENSE``."""
    return LossCurve(tuple(times * at for at in DENSE.at), DENSE.losses)


def test_a_level_between_two_points_is_interpolated() -> None:
    assert DENSE.reaches(2.5) == pytest.approx(70)
    assert DENSE.lowest(70) == pytest.approx(2.5)
    assert DENSE.reaches(6.0) == 20
    assert DENSE.reaches(0.5) is None
    assert (DENSE.lowest(5), DENSE.lowest(500)) == (5.0, 1.0)


def test_a_loss_that_rises_again_does_not_undo_a_level() -> None:
    """And the level is reached where it first was, not where the curve comes back to it."""
    bumpy = LossCurve((10, 20, 30, 40), (4.0, 2.0, 3.0, 1.0))
    assert bumpy.reaches(2.0) == 20
    assert bumpy.reaches(1.5) == pytest.approx(35)
    assert bumpy.lowest(30) == 2.0
    assert bumpy.final == 1.0


def test_a_plan_that_needs_twice_the_steps_has_half_the_efficiency() -> None:
    assert efficiency(DENSE, DENSE) == 1.0
    assert efficiency(DENSE, slower(2)) == pytest.approx(0.5)
    assert efficiency(DENSE, slower(1.25)) == pytest.approx(0.8)


def test_only_levels_that_the_plan_reaches_count_and_early_ones_do_not() -> None:
    assert levels(DENSE) == [4.0, 3.0, 2.0, 1.0]
    short = LossCurve((80, 160), (4.0, 3.0))  # twice as slow to 4, 160 steps to 3, no further
    assert efficiency(DENSE, short) == pytest.approx((40 / 80 + 60 / 160) / 2)
    assert efficiency(DENSE, LossCurve((100,), (4.5,))) is None


def test_a_flat_stretch_of_dense_counts_once() -> None:
    flat = LossCurve((20, 40, 60, 80, 100), (5.0, 3.0, 3.5, 3.2, 3.0))
    assert levels(flat) == [3.0]


def test_retained_value_is_1_for_dense_and_0_for_alone() -> None:
    assert retained_value(2.0, 1.0, 1.0) == 1.0
    assert retained_value(2.0, 1.0, 2.0) == 0.0
    assert retained_value(2.0, 1.0, 1.25) == pytest.approx(0.75)
    assert retained_value(2.0, 1.0, 3.0) == -1.0
    assert retained_value(1.0, 1.0, 1.0) is None


def test_the_time_to_target_is_step_time_times_steps_to_target() -> None:
    level = target_level(DENSE)
    assert level == pytest.approx(1.25)
    assert target_level(DENSE, 0.6) == pytest.approx(3.0)
    assert seconds_to(level, DENSE, 0.5) == pytest.approx(47.5)
    assert seconds_to(level, slower(2), 0.1) == pytest.approx(19)
    assert seconds_to(0.1, DENSE, 0.5) is None


@pytest.mark.parametrize(
    ("at", "losses", "says"),
    [((), (), "needs points"), ((1, 2), (1.0,), "as many"), ((1, 1), (1.0, 1.0), "must ascend")],
)
def test_a_curve_without_order_is_refused(
    at: tuple[float, ...], losses: tuple[float, ...], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        LossCurve(at, losses)
