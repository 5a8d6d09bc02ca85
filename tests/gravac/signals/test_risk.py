"""The risk light: each rule alone, the gravest wins, an unknown risk is not called low, and the loss counts."""

import pytest

from gravac.policies import parse
from gravac.protocol import GainSums, LevelSums, PolicySpec, WindowReport
from gravac.signals import efficiency
from gravac.signals.loss_slope import LossSlope
from gravac.signals.risk import (
    ACCEPTED,
    EFFICIENCY_HIGH,
    INCREASE_HIGH,
    RESIDUAL_RAISED,
    RULE,
    WITHOUT_MEMORY,
    Risk,
    RiskLight,
    RiskState,
    accepted_loss,
)
from gravac.signals.risk import judge as judge_window
from gravac.wording import format_percent
from tools.harness.cluster import window_report

UNSEEN = "countsketch"
"""A codec that was not simulated, so that only the backlog gives its efficiency."""


def judge(
    report: WindowReport,
    epsilon: float,
    kind: str = "sgd",
    compressor: str = UNSEEN,
    loss_slope: float | None = None,
) -> Risk:
    return judge_window(report, epsilon, kind, compressor, loss_slope=loss_slope)


def backlog_of(likely: float) -> float:
    """The backlog at which SGD has this efficiency."""
    return (1 / likely - 1) / efficiency.PER_BACKLOG


def report(backlog: float, residual: float, gain: float, cf: float = 10.0, **changes: object) -> WindowReport:
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
        cf=cf,
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
    ("likely", "residual", "gain", "level"),
    [
        (1.0, 0.0, 1.0, "none"),
        (1 - ACCEPTED + 0.001, 0.7, 0.66, "low"),
        (1 - ACCEPTED - 0.001, 0.7, 0.66, "raised"),
        (0.99, RESIDUAL_RAISED, 0.66, "raised"),
        (0.99, 0.7, 0.29, "raised"),
        (EFFICIENCY_HIGH + 0.001, 0.7, 0.66, "raised"),
        (EFFICIENCY_HIGH - 0.001, 0.7, 0.66, "high"),
        (EFFICIENCY_HIGH - 0.001, RESIDUAL_RAISED, 0.29, "high"),
    ],
)
def test_each_limit(likely: float, residual: float, gain: float, level: str) -> None:
    assert judge(report(backlog_of(likely), residual, gain), epsilon=0.3).level == level


def test_top_k_under_adam_is_not_called_low() -> None:
    """A backlog that costs SGD little, as in the GPT with AdamW whose held-out loss grew by 3.4 %."""
    window = report(0.166, 0.7, 0.66)
    assert judge(window, 0.3, "adam", "topk+bf16").level == "high"
    assert judge(report(0.02, 0.7, 0.66), 0.3, "adam", "topk+bf16").level == "high", "whatever the backlog"


@pytest.mark.parametrize(
    ("slope", "increase", "level"),
    [
        (0.1, 0.002, "low"),
        (0.1, 0.0021, "raised"),
        (1.0, 0.02, "low"),
        (0.3, INCREASE_HIGH - 1e-6, "raised"),
        (0.3, INCREASE_HIGH + 1e-6, "high"),
    ],
)
def test_each_limit_with_a_known_slope(slope: float, increase: float, level: str) -> None:
    likely = slope / (slope + increase)
    assert judge(report(backlog_of(likely), 0.7, 0.66), 0.3, loss_slope=slope).level == level


def test_the_same_efficiency_costs_more_where_the_loss_falls_steeply() -> None:
    window = report(backlog_of(0.95), 0.7, 0.66)
    flat, steep = judge(window, 0.3, loss_slope=0.05), judge(window, 0.3, loss_slope=2.0)
    assert (flat.level, steep.level) == ("raised", "high")
    kept = "the plan keeps 95 % of a step's progress, more than the loss of 2 % that you accept."
    assert flat.because[0] == f"At equal steps the loss is expected to be 0.3 % higher: {kept}"
    assert steep.because[0] == f"At equal steps the loss is expected to be 11 % higher: {kept}"


def test_top_k_under_adam_is_not_called_low_while_the_loss_falls() -> None:
    losses = LossSlope()
    for window in range(40):
        losses.add(50 * window + 49, 50, 2.0 + 5.0 / (window + 1) ** 0.5)
    found = judge(report(0.02, 0.7, 0.66), 0.3, "adam", "topk", losses.slope())
    assert found.level in ("raised", "high")
    assert found.because[0].startswith("At equal steps the loss is expected")


def test_a_flat_loss_does_not_hide_the_other_signs() -> None:
    window = report(0.02, RESIDUAL_RAISED, 0.2, nonfinite_steps=1)
    found = judge(window, 0.3, loss_slope=0.0)
    assert (found.level, len(found.because)) == ("raised", 4)
    assert judge(report(0.0, 0.0, 1.0), 0.3, loss_slope=1.0).level == "none"
    assert judge(report(0.0, 0.0, 0.66), 0.3, compressor="qsgd", loss_slope=0.0).level == "unknown"


def test_it_is_the_codec_of_the_steps_that_counts() -> None:
    """The plan of a decision may have another codec than the job's compressor."""
    window = report(0.02, 0.7, 0.66)
    (level,) = window.levels
    other = window.model_copy(update={"levels": (level.model_copy(update={"codec": "int8", "cf": 3.9}),)})
    assert judge(window, 0.3, "adam", "topk").level == "high"
    assert judge(other, 0.3, "adam", "topk").level == "low"


def test_without_an_error_memory_the_backlog_says_nothing() -> None:
    """The residual is always 0 there, so a backlog of 0 is no sign of learning."""
    found = judge(report(0.0, 0.0, 0.66), epsilon=0.3, compressor="qsgd")
    assert (found.level, found.because) == ("unknown", (f"{WITHOUT_MEMORY}.",))
    assert judge(report(0.0, 0.0, 0.999, cf=2.0), epsilon=0.3, compressor="bf16").level == "low"


def test_an_unknown_optimizer_is_said() -> None:
    found = judge(report(0.02, 0.7, 0.66), 0.3, "unknown", "topk")
    assert found.because[-1] == "The kind of the optimizer is not known, so it counts as one like Adam."
    for kind in ("other", "sign"):
        found = judge(report(0.02, 0.7, 0.66), 0.3, kind, "topk")
        assert (found.level, found.because) == (
            "unknown",
            ("No optimizer of this kind was simulated, so nobody knows what compression costs here.",),
        )


def test_the_gravest_reason_comes_first() -> None:
    found = judge(report(backlog_of(0.98), 2.0, 0.2), epsilon=0.3)
    assert found.because == (
        "The residual is 2 times the size of one gradient, 1.5 or more.",
        "The gain 0.2 is below ε = 0.3.",
        "The statistical efficiency is 0.98 (0.88 to 1), about 2 % more steps than dense, within the loss of 2 % that "
        "you accept.",
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
    for limit in (EFFICIENCY_HIGH, RESIDUAL_RAISED):
        assert f"{limit:g}" in RULE
    for share in (ACCEPTED, INCREASE_HIGH):
        assert format_percent(share) in RULE


def shown(
    light: RiskLight, *windows: WindowReport, slope: float | None = 0.2, accepted: float = ACCEPTED
) -> str:
    """The light after each of the windows, by its first letter."""
    word = ""
    for window in windows:
        light.add(window, 0.3, "sgd", UNSEEN, accepted, slope)
        assert light.risk is not None
        word += light.risk.level[0]
    return word


def losing(lost: float) -> WindowReport:
    return report(backlog_of(1.0 - lost), 0.7, 0.66)


def test_the_light_is_low_within_what_the_user_accepts() -> None:
    """A loss 0.4 % higher at equal steps is what 2 % more steps cost there, which the default accepts."""
    assert shown(RiskLight(), losing(0.02)) == "l"
    assert shown(RiskLight(), losing(0.02), accepted=0.01) == "r"
    assert shown(RiskLight(), losing(0.15), accepted=0.2) == "l"
    for text, accepted in (
        ("auto", 0.02),
        ("auto:bound=0.01", 0.01),
        ("auto:bound=0", 0.0),
        ("gravac", ACCEPTED),
    ):
        assert accepted_loss(parse(text).spec()) == accepted
    assert accepted_loss(PolicySpec(name="mine", settings={"bound": "tight"})) == ACCEPTED


def test_the_light_does_not_flap() -> None:
    assert shown(RiskLight(), *map(losing, (0.018, 0.024, 0.018, 0.024, 0.024, 0.024))) == "llllll", (
        "about the bound"
    )
    assert shown(RiskLight(), *map(losing, (0.01, 0.09, 0.01, 0.09, 0.01))) == "lllll", "single windows"
    assert (
        shown(RiskLight(), *map(losing, (0.01, 0.03, 0.03, 0.022, 0.022, 0.01, 0.03, 0.01, 0.01)))
        == "llrrrrrrl"
    )
    assert shown(RiskLight(), *map(losing, (0.01, 0.03, 0.5, 0.5))) == "llrh", "no higher than both windows"
    wobbling = [report(backlog_of(0.99), residual, 0.66) for residual in (1.6, 1.4, 1.6, 1.4, 1.4, 1.0, 1.0)]
    assert shown(RiskLight(), *wobbling) == "rrrrrrl"
    gains = [report(backlog_of(0.99), 0.7, gain) for gain in (0.29, 0.31, 0.31, 0.31, 0.5, 0.5)]
    assert shown(RiskLight(), *gains) == "rrrrrl"


def test_facts_are_shown_at_once() -> None:
    dense, lost = report(0.0, 0.0, 1.0), losing(0.01).model_copy(update={"nonfinite_steps": 1})
    assert (
        shown(RiskLight(), losing(0.05), dense, losing(0.01), window_report(levels=()), losing(0.05))
        == "rnlur"
    )
    assert shown(RiskLight(), losing(0.01), lost, losing(0.01), losing(0.01)) == "lrrl"


def test_a_light_continues_from_its_state_and_says_why_it_stays() -> None:
    light = RiskLight()
    shown(light, *map(losing, (0.01, 0.05)))
    assert light.risk is not None
    assert light.risk.because[0] == "The last window alone says raised, which may be an accident."
    assert light.state is not None
    again = RiskLight(RiskState.model_validate_json(light.state.model_dump_json()))
    assert shown(again, losing(0.05)) == shown(light, losing(0.05)) == "r"


def test_under_gravac_optim_late_gradients_are_no_risk_in_themselves() -> None:
    """A residual of the size of a gradient and P = 0.5 are usual there, with 8 ranks too."""
    level = report(0.22, 0.95, 0.55, cf=16.6).levels[0]
    shown = {"progress_steps": 50, "reference_sq": 1.0, "raw_mean_sq": 1.0, "raw_dot_next": 0.25}

    def found(kind: str, progress: float, accepted: float, ranks: int = 4) -> str:
        sums = level.sums.model_copy(update=shown | {"moved_dot_reference": progress})
        window = window_report(levels=(level.model_copy(update={"sums": sums}),))
        return judge_window(window, 0.0, kind, "topk+twobit", accepted, ranks=ranks).level

    assert found("adam-aged", 0.5, 0.05) == "low"
    assert found("adam", 0.5, 0.05) == "high"
    assert found("adam-aged", 0.5, 0.02) == "low", "what the default accepts"
    assert found("adam-aged", 0.5, 0.005) == "raised"
    assert found("adam-aged", 0.1, 0.05) == "high", "it hardly follows the dense way"
    assert found("adam-aged", 0.5, 0.05, ranks=8) == "low"
    assert found("adam-low-beta", 0.5, 0.05, ranks=8) == "high"


def shown_at(residual: float, *rates: float | None) -> Risk:
    """The light on a residual of this size, after windows at these rates, the last one at the last."""
    light = RiskLight()
    for rate in rates:
        light.add(report(0.0, residual, 0.66, residual_rate=rate), 0.3, "sgd", UNSEEN)
    assert light.risk is not None
    return light.risk


def test_a_residual_that_grew_as_the_learning_rate_fell_is_no_risk() -> None:
    """Its size is relative to gradients of steps that move the parameters ever less, and it is scaled to have the same
    effect: at the end of a cosine it was 98 times one gradient."""
    falling = [1e-3, 5e-4, 1e-4, 1e-5, 1e-5]
    found = shown_at(98.0, *falling)
    assert found.level == "low"
    assert (
        "The residual is 98.0 times the size of one gradient, and 0.98 times at the largest learning rate, which was "
        "100 times this, below 1.5." in found.because
    )
    assert shown_at(98.0, *[1e-3] * 5).level == "raised", "the rate explains nothing"
    assert shown_at(98.0, 1e-5, 1e-4, 1e-3, 1e-3, 1e-3).level == "raised", "a warm-up neither"
    assert shown_at(98.0, *[None] * 5).level == "raised", "traces that do not say it"
    found = shown_at(300.0, *falling)
    assert found.level == "raised", "more waits than the rate explains"
    assert (
        "and 3 times at the largest learning rate, which was 100 times this, 1.5 or more." in found.because[0]
    )


def test_the_largest_rate_is_carried_over_a_restart_of_the_controller() -> None:
    light = RiskLight()
    for rate in (1e-3, 1e-5, 1e-5):
        light.add(report(0.0, 98.0, 0.66, residual_rate=rate), 0.3, "sgd", UNSEEN)
    assert light.state is not None
    again = RiskLight(RiskState.model_validate_json(light.state.model_dump_json()))
    again.add(report(0.0, 98.0, 0.66, residual_rate=1e-5), 0.3, "sgd", UNSEEN)
    assert again.risk is not None
    assert again.risk.level == "low"
