"""What follows from a report, checked against numbers worked out by hand."""

import math

import pytest
from policies.builders import level_sums, window_report

from gravac import derived
from gravac.protocol import GainSums, WindowReport


def sums(**changes: float) -> GainSums:
    given = dict.fromkeys(GainSums.model_fields, 0.0) | {"steps": 10, "mean_steps": 0} | changes
    return GainSums(**given)  # type: ignore[arg-type]


def report(*of_levels: GainSums, **changes: object) -> WindowReport:
    empty = level_sums(0, 10.0, 10, 5, 0.1, 0.05)
    levels = tuple(empty.model_copy(update={"sums": one}) for one in of_levels)
    return window_report(**({"levels": levels, "first_step": 100, "last_step": 119} | changes))


TWO = report(
    sums(gradient_sq=4.0, compensated_sq=8.0, sent_sq=6.0, minimum_sq=7.0, candidate_sq=5.0, residual_sq=1.0,
         residual_dot_gradient=2.0),
    sums(gradient_sq=12.0, compensated_sq=12.0, sent_sq=3.0, minimum_sq=3.0, candidate_sq=1.0, residual_sq=8.0,
         residual_dot_gradient=-6.0),
    seconds=5.0, samples=640, dense_bytes=1000, payload_bytes=80,
)  # fmt: skip


def test_sums_are_added_before_dividing() -> None:
    assert derived.gain(TWO) == 9.0 / 20.0
    assert derived.gain_minimum(TWO) == 10.0 / 20.0
    assert derived.gain_candidate(TWO) == 6.0 / 20.0
    assert derived.owed_steps(TWO) == -4.0 / 16.0
    assert derived.residual_ratio(TWO) == math.sqrt(9.0 / 16.0)
    assert derived.total_sums(TWO).steps == 20


def test_speeds_and_sizes() -> None:
    assert derived.steps(TWO) == 20
    assert derived.step_seconds(TWO) == 0.25
    assert derived.samples_per_second(TWO) == 128.0
    assert derived.useful_samples_per_second(TWO) == 128.0 * 0.45
    assert derived.wire_cf(TWO) == 12.5


@pytest.mark.parametrize(
    "empty",
    [report(seconds=0.0, payload_bytes=0), report(sums(), seconds=0.0, payload_bytes=0)],
    ids=["no levels", "zeros"],
)
def test_what_is_undefined_is_none_not_zero(empty: WindowReport) -> None:
    for value in (derived.gain, derived.gain_minimum, derived.gain_candidate, derived.owed_steps,
                  derived.residual_ratio, derived.samples_per_second, derived.useful_samples_per_second,
                  derived.wire_cf):  # fmt: skip
        assert value(empty) is None
    assert derived.step_seconds(empty) == 0.0


def test_what_overflows_is_none_not_infinite() -> None:
    huge = report(sums(compensated_sq=5e-324, sent_sq=1e300, gradient_sq=5e-324, residual_dot_gradient=-1e300,
                       residual_sq=1e300), seconds=5e-324)  # fmt: skip
    for value in (derived.gain, derived.owed_steps, derived.residual_ratio, derived.samples_per_second):
        assert value(huge) is None
