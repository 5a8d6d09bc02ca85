"""The plan of a step: the gate, what a codec gained, directives and trials."""

from dataclasses import replace

import pytest

from gravac.policies import StaticPolicy
from gravac.protocol import Trial
from gravac.signals.gain import GainTracker
from gravac_agent.exchange.plan import Directive, StepPlan, next_plan

EXPLORE = Directive(3, "explore", 10.0, 40.0, 0.5)


def tracker(**gains: float) -> GainTracker:
    made = GainTracker(0.1)
    for cf, value in gains.items():
        made.update(float(cf.removeprefix("cf")), value, 1.0)
    return made


@pytest.mark.parametrize(
    ("gains", "cf"),
    [
        ({"cf10": 0.9, "cf40": 0.6}, 40.0),
        ({"cf10": 0.9, "cf40": 0.5}, 40.0),  # equal to epsilon passes
        ({"cf10": 0.9, "cf40": 0.4}, 10.0),
        ({"cf10": 0.4, "cf40": 0.1}, 1.0),
        ({"cf10": 0.9}, 10.0),  # a gain not measured yet is no pass
        ({}, 1.0),
    ],
)
def test_gate(gains: dict[str, float], cf: float) -> None:
    assert next_plan(EXPLORE, tracker(**gains)).cf == cf


def test_a_plan_stays_the_same_object_until_directive_or_cf_changes() -> None:
    plan = next_plan(EXPLORE, tracker(cf10=0.9, cf40=0.6))
    assert next_plan(replace(EXPLORE), tracker(cf10=0.9, cf40=0.7), before=plan) is plan
    assert next_plan(EXPLORE, tracker(cf10=0.9), before=plan).level == (3, 0, 10.0)
    assert next_plan(replace(EXPLORE, epoch=4), tracker(cf40=0.6), before=plan).level == (4, 0, 40.0)


def test_measured_levels() -> None:
    assert StepPlan(EXPLORE, 1.0).measured == (10.0, 40.0)
    assert StepPlan(Directive(3, "hold", 40.0, 40.0, 0.5), 40.0).measured == (40.0,)
    assert StepPlan(Directive(0, "warmup", 1.0, 1.0, 0.5), 1.0).measured == ()
    assert next_plan(EXPLORE.dense(), tracker(cf10=1.0, cf40=1.0)) == StepPlan(
        Directive(3, "fallback", 1.0, 1.0, 0.5), 1.0
    )


def test_a_codec_has_gains_of_its_own() -> None:
    """Else a gain of Top-k would let int4 pass, at the same CF."""
    made = tracker(cf10=0.9, cf40=0.9)
    other = replace(EXPLORE, codec=2)
    assert next_plan(other, made) == StepPlan(other, 1.0)
    made.update(10.0, 0.6, 1.0, codec=2)
    assert next_plan(other, made) == StepPlan(other, 10.0)
    assert StepPlan(other, 10.0).gains == {(2, 10.0), (2, 40.0)}


@pytest.mark.parametrize(("epsilon", "first", "cf"), [(0.0, {0}, 40.0), (0.0, {1}, 1.0), (0.1, {0}, 1.0)])
def test_without_a_gate_nothing_needs_to_be_measured_first(
    epsilon: float, first: set[int], cf: float
) -> None:
    """Except for a codec that learns from a dense step."""
    directive = Directive(3, "hold", 40.0, 40.0, epsilon, codec=1)
    found = next_plan(directive, tracker(), frozenset(first))
    assert found.cf == cf
    assert found.measured == (40.0,)


def test_a_decision_names_its_codec_and_the_directive_its_number() -> None:
    decision = StaticPolicy(cf=10).start().decision
    assert Directive.of(decision, ("qsgd",)) == Directive(0, "hold", 10.0, 10.0, 0.0)
    other = decision.model_copy(update={"codec": "int4", "window_steps": 7})
    assert Directive.of(other, ("qsgd", "int4")) == Directive(0, "hold", 10.0, 10.0, 0.0, 2, 7)
    with pytest.raises(ValueError, match=r"codec 'int4'; besides the job's compressor the ranks have qsgd$"):
        Directive.of(other, ("qsgd",))


def test_a_trial_has_a_limit_and_a_plan_to_go_back_to() -> None:
    decision = StaticPolicy(cf=10).start().decision.model_copy(update={"window_steps": 7})
    tried = decision.model_copy(update={"trial": Trial(step_seconds=0.3, cf=4.0, codec="int4")})
    directive = Directive.of(tried, ("qsgd", "int4"))
    assert directive == Directive(0, "hold", 10.0, 10.0, 0.0, 0, 7, 0.3, 2, 4.0)
    assert directive.back() == Directive(0, "hold", 4.0, 4.0, 0.0, 2), "of the job's window length, no limit"
    assert directive.dense() == replace(Directive.of(decision, ()), phase="fallback").dense()
    assert StepPlan(directive, 10.0).priced
    assert not StepPlan(directive, 1.0).priced, "dense to measure it, and not what is on trial"
    assert StepPlan(directive, 10.0).gains == {(0, 10.0), (2, 4.0)}, "else the gain is not known then"
    for other in (directive.back(), directive.dense(), Directive.of(decision, ())):
        assert not StepPlan(other, other.cf_candidate).priced


@pytest.mark.parametrize(
    ("seconds", "codec", "words"),
    [(0.0, None, "trial.step_seconds 0, which every step exceeds"), (1.0, "topk", "codec 'topk'; besides")],
)
def test_a_trial_that_cannot_be_followed_is_refused(seconds: float, codec: str | None, words: str) -> None:
    trial = Trial(step_seconds=seconds, cf=4.0, codec=codec)
    decision = StaticPolicy(cf=10).start().decision.model_copy(update={"trial": trial})
    with pytest.raises(ValueError, match=words):
        Directive.of(decision, ("qsgd",))


def test_another_setup_is_another_plan() -> None:
    assert StepPlan(EXPLORE, 10.0).fingerprint("topk") != StepPlan(EXPLORE, 10.0).fingerprint("randomk")
