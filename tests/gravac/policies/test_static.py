"""The policies that do not adapt."""

import pytest
from pydantic import ValidationError

from gravac.policies import DensePolicy, GravacPolicy, Policy, RoundRobinPolicy, StaticPolicy, WarmupPolicy
from gravac.policies.windows import dense_baseline
from gravac.protocol import Decision
from tools.harness.cluster import Cluster, Run


def test_dense_stays_dense_in_one_epoch() -> None:
    run = Run(DensePolicy(), Cluster())
    run.windows(3)
    assert {(d.phase, d.cf_minimum, d.cf_candidate, d.epoch) for d in run.decisions} == {
        ("hold", 1.0, 1.0, 0)
    }
    assert run.rules == ["start", "fixed", "fixed", "fixed"]


def test_static_sends_its_cf_from_the_start() -> None:
    run = Run(StaticPolicy(cf=40), Cluster())
    run.windows(2)
    assert {(d.phase, d.cf_minimum, d.cf_candidate, d.epsilon, d.epoch) for d in run.decisions} == {
        ("hold", 40.0, 40.0, 0.0, 0)
    }
    assert run.last.reason == "The static policy holds CF 40, which keeps 0.33 of the gradient."


def test_static_measures_dense_windows_first() -> None:
    run = Run(StaticPolicy(cf=40, warmup_windows=2), Cluster())
    run.windows(3)
    assert [(d.phase, d.cf_candidate, d.epoch) for d in run.decisions] == [
        ("warmup", 1.0, 0),
        ("warmup", 1.0, 0),
        ("hold", 40.0, 1),
        ("hold", 40.0, 1),
    ]


def test_a_window_in_fallback_is_no_baseline() -> None:
    run = Run(StaticPolicy(cf=40, warmup_windows=1), Cluster())
    assert run.windows(phase="fallback").rule == "unusable"
    assert "fallback" in run.last.reason
    assert run.windows().cf_candidate == 40.0


def test_warmup_climbs_dgcs_ramp_and_holds() -> None:
    run = Run(WarmupPolicy(windows=2), Cluster())
    run.windows(10)
    assert [(d.phase, d.cf_minimum, d.cf_candidate, d.epoch) for d in run.decisions] == [
        *[("explore", 4.0, 4.0, 0)] * 2,
        *[("explore", 16.0, 16.0, 1)] * 2,
        *[("explore", 64.0, 64.0, 2)] * 2,
        *[("explore", 250.0, 250.0, 3)] * 2,
        *[("hold", 1000.0, 1000.0, 4)] * 3,
    ]
    assert [decision.reason for decision in run.decisions[:2]] == [
        "The warmup policy sends CF 4 for 2 windows, then CF 16, and so on up to CF 1000.",
        "The ramp stays at CF 4 for 1 window more, which keeps 0.25 of the gradient.",
    ]
    assert (
        run.decisions[6].reason
        == "The warmup policy sends CF 250 for 2 windows, then CF 1000, and holds that."
    )
    assert run.decisions[8].reason == "From here on the warmup policy holds CF 1000."
    assert run.last.reason == "The warmup policy holds CF 1000, which keeps 0.080 of the gradient."
    assert set(run.rules) == {"start", "fixed"}


def test_warmup_after_a_baseline_to_a_milder_cf_not_counting_fallback() -> None:
    run = Run(WarmupPolicy(cf=40, windows=1, dense_windows=2), Cluster())
    assert run.windows(phase="fallback").rule == "unusable"
    assert run.last.cf_candidate == 1.0
    run.windows(4)
    assert [(d.phase, d.cf_candidate) for d in run.decisions[1:]] == [
        *[("warmup", 1.0)] * 2,
        ("explore", 4.0),
        ("explore", 16.0),
        ("hold", 40.0),
    ]
    assert (
        run.decisions[0].reason
        == "The warmup policy is dense for 2 windows, then CF 4, and so on up to CF 40."
    )
    assert run.decisions[2].reason == "The dense baseline goes on for 1 window more."


def test_warmup_to_less_than_its_ramp_holds_at_once() -> None:
    run = Run(WarmupPolicy(cf=2), Cluster())
    assert (run.windows().cf_candidate, run.last.phase, run.last.epoch) == (2.0, "hold", 0)


def test_epochs_continue_from_the_given_one() -> None:
    assert StaticPolicy(cf=2).start(epoch=7).decision.epoch == 7
    assert DensePolicy().start(epoch=7).decision.epoch == 7
    assert WarmupPolicy().start(epoch=7).decision.epoch == 7
    assert GravacPolicy().start(epoch=7).decision.epoch == 7
    assert GravacPolicy(variant="paper").start(epoch=7).decision.epoch == 7


def test_a_state_of_another_policy_is_refused() -> None:
    report = Cluster().report(0, DensePolicy().start().decision)
    with pytest.raises(TypeError, match="state is StaticState, got DenseState"):
        StaticPolicy(cf=2).decide(DensePolicy().start().state, report)


def test_a_policy_may_name_its_own_rules_but_only_short_ones() -> None:
    decision = DensePolicy().start().decision.model_dump() | {"rule": "our_rule", "candidates": ()}
    assert Decision.model_validate(decision).rule == "our_rule"
    for rule in ("", "Our rule", "a" * 33, 'x"} 1'):
        with pytest.raises(ValidationError, match="rule"):
            Decision.model_validate(decision | {"rule": rule})


def test_roundrobin_measures_every_cf_in_turn() -> None:
    run = Run(RoundRobinPolicy(cfs=(1, 10, 40)), Cluster())
    run.windows(7)
    assert [decision.cf_candidate for decision in run.decisions] == [1, 10, 40, 1, 10, 40, 1, 10]
    assert [decision.epoch for decision in run.decisions] == list(range(8))
    assert run.decisions[2].reason == "CF 10: 291 samples/s at gain 0.60, 175 useful. Next in turn: CF 40."
    assert [(row.cf, row.gain, row.window) for row in run.last.candidates] == [
        (1.0, 1.0, 6),
        (10.0, 0.60, 4),
        (40.0, 0.33, 5),
    ]


def test_roundrobin_measures_a_cf_again_if_it_had_too_few_steps() -> None:
    run = Run(RoundRobinPolicy(cfs=(10, 40)), Cluster(window_steps=6))
    assert (run.windows().rule, run.last.cf_candidate) == ("extend", 10.0)
    assert run.windows(phase="fallback").rule == "unusable"
    run.change(window_steps=50)
    assert (run.windows().rule, run.last.cf_candidate) == ("fixed", 40.0)


@pytest.mark.parametrize("policy", [DensePolicy(), StaticPolicy(cf=40, warmup_windows=1), GravacPolicy()])
def test_dense_steps_of_a_dense_decision_are_a_baseline_whatever_the_phase(policy: Policy) -> None:
    decision = policy.start().decision
    report = Cluster().report(0, decision)
    level = dense_baseline(report, decision)
    assert level is not None
    assert level.step_seconds_median == pytest.approx(1.1)
    assert dense_baseline(Cluster().report(0, decision, phase="fallback"), decision) is None


def test_dense_steps_that_the_gate_let_pass_are_no_baseline() -> None:
    decision = StaticPolicy(cf=1000, epsilon=0.5).start().decision
    report = Cluster().report(0, decision)
    assert report.levels[0].cf == 1.0  # gain 0.08, below epsilon
    assert dense_baseline(report, decision) is None
