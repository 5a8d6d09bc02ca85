"""Policies dense and static: they do not adapt."""

import pytest
from pydantic import ValidationError

from gravac.policies import DensePolicy, GravacPolicy, StaticPolicy, WarmupPolicy
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
