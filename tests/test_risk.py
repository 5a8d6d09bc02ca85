"""The risk light: each rule alone, the gravest wins, and an unknown risk is not called low."""

import pytest

from gravac.protocol import GainSums, LevelSums, WindowReport
from gravac.signals.risk import BACKLOG_HIGH, BACKLOG_RAISED, RESIDUAL_RAISED, RULE, judge
from tools.harness.cluster import window_report


def report(backlog: float, residual: float, gain: float, **changes: object) -> WindowReport:
    """A window whose backlog, residual ratio and gain are these."""
    sums = GainSums(
        steps=10,
        gradient_sq=4.0,
        compensated_sq=8.0,
        sent_sq=8.0 * gain,
        minimum_sq=0.0,
        candidate_sq=0.0,
        residual_sq=4.0 * residual**2,
        residual_dot_gradient=4.0 * backlog,
    )
    level = LevelSums(
        epoch=0,
        cf=10.0,
        steps=10,
        settled_steps=0,
        step_seconds_median=None,
        exposed_seconds_median=None,
        dense_bytes=1,
        payload_bytes=1,
        sums=sums,
    )
    return window_report(levels=(level,), **changes)


@pytest.mark.parametrize(
    ("backlog", "residual", "gain", "level"),
    [
        (0.0, 0.0, 1.0, "none"),
        (0.1, 0.7, 0.66, "low"),
        (-0.5, 0.7, 0.66, "low"),
        (BACKLOG_RAISED, 0.7, 0.66, "raised"),
        (0.1, RESIDUAL_RAISED, 0.66, "raised"),
        (0.1, 0.7, 0.29, "raised"),
        (BACKLOG_HIGH, 0.7, 0.66, "high"),
        (BACKLOG_HIGH, RESIDUAL_RAISED, 0.29, "high"),
    ],
)
def test_each_limit(backlog: float, residual: float, gain: float, level: str) -> None:
    assert judge(report(backlog, residual, gain), epsilon=0.3).level == level


def test_the_gravest_reason_comes_first() -> None:
    found = judge(report(0.1, 2.0, 0.2), epsilon=0.3)
    assert found.because == (
        "The residual is 2 times the size of one gradient, 1.5 or more.",
        "The gain 0.2 is below ε = 0.3.",
        "The backlog is 0.1 steps, below 0.2.",
    )


def test_a_lost_step_raises_it_even_where_all_is_sent() -> None:
    found = judge(report(0.0, 0.0, 1.0, nonfinite_steps=1), epsilon=0.3)
    assert found.level == "raised"
    assert found.because[0] == "1 step was left out: a gradient was not finite."


def test_nothing_to_judge_by_is_unknown_not_low() -> None:
    assert judge(window_report(levels=()), epsilon=0.3).level == "unknown"
    lost = judge(window_report(levels=(), nonfinite_steps=20), epsilon=0.3)
    assert (lost.level, lost.because) == ("unknown", ("20 steps were left out: a gradient was not finite.",))


def test_the_rule_names_its_limits() -> None:
    for limit in (BACKLOG_RAISED, BACKLOG_HIGH, RESIDUAL_RAISED):
        assert f"{limit:g}" in RULE
