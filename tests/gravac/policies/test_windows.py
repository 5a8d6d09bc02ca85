"""Decisions that name a codec and a window length: epochs, what a window measured, and operators' orders."""

import pytest

from gravac.fold import JobFold
from gravac.policies import DensePolicy, GravacPolicy, Policy, StaticPolicy
from gravac.policies.windows import dense_baseline, gain_of, levels_under, measure
from gravac.protocol import Decision, OptimizerSpec, Override, SmoothedGain
from tests.support.scripted import Play, ScriptedPolicy
from tools.harness.cluster import Cluster, job_spec

CLUSTER = Cluster()


def fold_of(*plays: Play, also: tuple[str, ...] = ()) -> JobFold:
    policy = ScriptedPolicy(*plays, also=also)
    return JobFold(job_spec(policy.spec()), policy)


def step(fold: JobFold) -> Decision:
    return fold.decide(CLUSTER.report(fold.next_window, fold.decision))


def order(fold: JobFold, action: str, **given: object) -> Decision:
    fields = {"action": action, "actor": "alice", "epoch": fold.decision.epoch} | given
    fold.order(Override.model_validate(fields))
    return step(fold)


def plan(decision: Decision) -> tuple[str | None, float, int | None]:
    return decision.codec, decision.cf_candidate, decision.window_steps


def test_another_codec_begins_an_epoch_and_another_window_length_does_not() -> None:
    fold = fold_of(
        Play(None, 8.0), Play("qsgd", 8.0), Play("qsgd", 8.0, 5), Play("qsgd", 8.0), Play(None, 8.0)
    )
    found = [fold.decision, *(step(fold) for _ in range(4))]
    assert [each.epoch for each in found] == [0, 1, 1, 1, 2]
    assert [plan(each) for each in found] == [
        *((None, 8.0, None), ("qsgd", 8.0, None), ("qsgd", 8.0, 5), ("qsgd", 8.0, None), (None, 8.0, None)),
    ]


def test_a_window_counts_what_the_codec_in_force_sent() -> None:
    """Equal CFs of two codecs have other gains and other times."""
    fold = fold_of(Play("qsgd", 10.0))
    report = CLUSTER.report(0, fold.decision)
    other = SmoothedGain(cf=10.0, gain=0.25)
    report = report.model_copy(update={"gains": (other, *report.gains)})
    assert gain_of(report, 10.0) == 0.25
    assert gain_of(report, 10.0, "qsgd") == 0.6
    assert gain_of(report, 10.0, "powersgd") is None
    found = measure(report, fold.decision, 1)[10.0]
    assert (found.codec, found.gain) == ("qsgd", 0.6)
    levels = tuple(level.model_copy(update={"codec": None}) for level in report.levels)
    assert levels_under(report.model_copy(update={"levels": levels}), fold.decision) == ()
    dense = tuple(level.model_copy(update={"cf": 1.0}) for level in levels)
    assert levels_under(report.model_copy(update={"levels": dense}), fold.decision) == dense


def test_a_pin_keeps_the_codec_in_force_or_names_one() -> None:
    fold = fold_of(Play(None, 8.0), Play("qsgd", 8.0, 5), also=("powersgd",))
    step(fold)
    assert plan(order(fold, "pin", cf=20.0)) == ("qsgd", 20.0, None)
    assert plan(step(fold)) == ("qsgd", 20.0, None)
    pinned = order(fold, "pin", cf=20.0, codec="powersgd")
    assert plan(pinned) == ("powersgd", 20.0, None)
    assert "alice pinned CF 20 with powersgd" in pinned.reason
    assert plan(order(fold, "dense")) == ("powersgd", 1.0, None)
    assert plan(order(fold, "pin", cf=20.0, codec="topk")) == (None, 20.0, None), "the job's own compressor"
    assert plan(order(fold, "pause")) == ("qsgd", 8.0, None)
    assert plan(order(fold, "resume")) == ("qsgd", 8.0, 5)


def test_a_job_sends_with_its_compressor_and_those_of_its_policy() -> None:
    assert fold_of(Play("qsgd", 8.0), Play("powersgd", 8.0)).codecs == ("topk", "qsgd", "powersgd")


def test_a_policy_is_fitted_to_the_job_and_again_when_it_is_registered_anew() -> None:
    policy = ScriptedPolicy(Play(None, 8.0))
    spec = job_spec(policy.spec())
    fold = JobFold(spec, policy)
    assert isinstance(fold.policy, ScriptedPolicy)
    assert fold.policy.job == spec
    adam = OptimizerSpec(name="Adam", kind="adam", learning_rate=0.1, momentum=0.9, weight_decay=None)
    fold.resume(spec.model_copy(update={"optimizer": adam, "incarnation": "second"}))
    assert fold.policy.job is not None
    assert fold.policy.job.optimizer == adam


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
