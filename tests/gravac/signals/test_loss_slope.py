"""The loss slope: exponent of a power law, in bounded memory, and unknown where the losses do not show it."""

from collections.abc import Iterable

import pytest

from gravac.signals.loss_slope import BINS, LossSlope


def tracked(losses: Iterable[float], window_steps: int = 50) -> LossSlope:
    """A job that logged these losses, one a window."""
    found = LossSlope()
    for window, loss in enumerate(losses):
        found.add((window + 1) * window_steps - 1, window_steps, loss)
    return found


def power_law(slope: float, windows: int, window_steps: int = 50) -> list[float]:
    """The mean of 3 · step^-slope in each window."""
    starts = range(0, windows * window_steps, window_steps)
    return [
        sum(3.0 * (first + step + 0.5) ** -slope for step in range(window_steps)) / window_steps
        for first in starts
    ]


@pytest.mark.parametrize("slope", [0.05, 0.3, 1.0])
@pytest.mark.parametrize(("windows", "window_steps"), [(15, 7), (31, 50), (64, 50), (81, 50), (333, 10)])
def test_the_exponent_of_a_power_law(slope: float, windows: int, window_steps: int) -> None:
    found = tracked(power_law(slope, windows, window_steps), window_steps).slope()
    assert found == pytest.approx(slope, rel=0.02)


def test_the_first_estimate_is_close() -> None:
    assert tracked(power_law(0.3, 4)).slope() == pytest.approx(0.3, rel=0.12)


def test_memory_stays_bounded() -> None:
    found = LossSlope()
    for window in range(20_000):
        found.add(100 * window + 99, 100, 1.0)
        assert len(found.bins.bins) <= BINS
    kept = found.bins
    assert sum(steps for steps, _, _ in kept.bins) == pytest.approx(2_000_000)
    assert kept.width * BINS < 2 * 2_000_000, "no wider than needed"


def test_it_continues_from_its_state_as_if_never_stopped() -> None:
    losses = power_law(0.4, 77)
    whole, text = tracked(losses), tracked(losses[:33]).bins.model_dump_json()
    resumed = LossSlope(type(whole.bins).model_validate_json(text))
    for window in range(33, 77):
        resumed.add(50 * window + 49, 50, losses[window])
    assert resumed.bins == whole.bins


def test_a_loss_that_rises_has_no_slope_below_zero() -> None:
    assert tracked([1.0 + 0.1 * window for window in range(20)]).slope() == 0.0


def test_it_is_unknown_where_the_losses_do_not_show_it() -> None:
    assert tracked(power_law(0.3, 3)).slope() is None
    assert tracked([2.0, 1.0, 0.5, -0.1, -0.2]).slope() is None
    assert tracked([1.0, 1.0, 0.5, 0.0]).slope() is None
    late = LossSlope()
    for window in range(90, 100):
        late.add(50 * window + 49, 50, 1.0)
    assert late.slope() is None, "the middle of training was not seen"


def test_the_largest_losses_do_not_overflow() -> None:
    assert tracked([1e300] * 20 + [1e-300] * 20).slope() is not None
