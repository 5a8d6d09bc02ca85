"""What trials may take: on both sides of each limit (docs/constants.md)."""

import pytest

from gravac.policies import trials


def test_trials_may_take_a_fifth_of_the_first_minute_and_two_percent_afterwards() -> None:
    for elapsed, left in ((10.0, 2.0), (60.0, 12.0), (61.0, 12.02), (1060.0, 32.0)):
        assert trials.allowance(elapsed, 0.0) == pytest.approx(left)
    assert trials.allowance(1060.0, 30.0) == pytest.approx(2.0)
    assert trials.allowance(1060.0, 33.0) == 0.0


def test_a_trial_is_of_ten_steps_and_ends_where_one_takes_three_times_as_long() -> None:
    """And of about three more, until the next decision is in force."""
    assert trials.affordable(1.0, 0.5, 6.5)
    assert not trials.affordable(1.01, 0.5, 6.5)
    assert trials.step_limit(1.0, 0.5, 5.0) == pytest.approx(3.0)
    assert trials.step_limit(1.0, 0.5, 52.0) == pytest.approx(0.5 + 4.0), "what can be afforded"
