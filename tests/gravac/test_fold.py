"""The state of a job as the fold of its journal."""

from collections.abc import Callable

import pytest

from gravac.fold import REMEMBERED_WINDOWS, JobFold
from gravac.policies import GravacPolicy, StaticPolicy
from gravac.policies.static import DensePolicy
from gravac.protocol import JobSpec, PolicySpec
from tools.harness.cluster import Cluster, job_spec

SPEC = job_spec(GravacPolicy().spec())
STATIC = job_spec(StaticPolicy(cf=2).spec())
CLUSTER = Cluster()


def run(fold: JobFold, windows: int) -> None:
    for _ in range(windows):
        fold.decide(CLUSTER.report(fold.next_window, fold.decision))


def changed(spec: JobSpec, **changes: object) -> JobSpec:
    return spec.model_copy(update=changes)


def test_windows_are_folded_in_order() -> None:
    fold = JobFold(SPEC)
    assert fold.start_decision == fold.decision == GravacPolicy().start().decision
    run(fold, 6)
    assert (fold.next_window, fold.decision.window, fold.decision.phase) == (6, 5, "hold")
    answer = fold.job_answer()
    assert (answer.job, answer.next_window, answer.decision) == ("job", 6, fold.decision)
    assert fold.answer().policy_state == answer.policy_state == fold.policy_state


def test_every_judgement() -> None:
    fold = JobFold(SPEC)
    first = CLUSTER.report(0, fold.decision)
    assert fold.judge(first) == "new"
    fold.decide(first)
    assert fold.judge(first) == "duplicate"
    assert fold.judge(first.model_copy(update={"samples": first.samples + 1})) == "conflict"
    assert fold.judge(first.model_copy(update={"window": 3})) == "gap"
    assert fold.judge(first.model_copy(update={"job": "other"})) == "wrong_job"
    assert fold.judge(first.model_copy(update={"incarnation": "second"})) == "wrong_incarnation"
    fold.decide(CLUSTER.report(3, fold.decision))
    assert fold.next_window == 4
    assert fold.judge(first.model_copy(update={"window": 2})) == "conflict"  # skipped over: too late now


@pytest.mark.parametrize("alter", [{"window": 0}, {"window": 0, "samples": 7}, {"job": "other"}])
def test_only_new_windows_and_gaps_can_be_folded(alter: dict[str, object]) -> None:
    fold = JobFold(SPEC)
    report = CLUSTER.report(0, fold.decision)
    fold.decide(report)
    before = fold.policy_state
    with pytest.raises(ValueError, match=r"cannot be folded: (duplicate|conflict|wrong_job)"):
        fold.decide(report.model_copy(update=alter))
    assert (fold.policy_state, fold.next_window) == (before, 1)


def test_memory_is_bounded_and_very_old_windows_are_duplicates() -> None:
    fold = JobFold(job_spec(DensePolicy().spec()))
    run(fold, REMEMBERED_WINDOWS + 10)
    old = CLUSTER.report(0, fold.decision, samples=1)
    assert fold.judge(old) == "duplicate"


def test_a_fresh_fold_goes_on_from_a_policy_state() -> None:
    fold = JobFold(SPEC)
    run(fold, 4)
    resumed = JobFold(changed(SPEC, policy_state=fold.policy_state, first_window=4, incarnation="second"))
    assert resumed.start_decision == fold.decision
    assert resumed.next_window == 4
    for _ in range(5):
        report = CLUSTER.report(fold.next_window, fold.decision)
        decision = resumed.decide(report.model_copy(update={"incarnation": "second"}))
        assert decision == fold.decide(report)


def test_registering_the_same_incarnation_again_changes_nothing() -> None:
    fold = JobFold(SPEC)
    run(fold, 4)
    before = fold.job_answer()
    fold.resume(SPEC)
    assert fold.job_answer() == before


def test_a_new_incarnation_goes_on_with_the_state() -> None:
    fold = JobFold(SPEC)
    run(fold, 4)
    before = fold.job_answer()
    fold.resume(changed(SPEC, incarnation="second", world_size=4))
    assert fold.job_answer() == before
    report = CLUSTER.report(4, fold.decision)
    assert fold.judge(report) == "wrong_incarnation"
    assert fold.judge(report.model_copy(update={"incarnation": "second"})) == "new"


def test_epochs_never_go_backwards() -> None:
    ahead, behind = JobFold(SPEC), JobFold(SPEC)
    run(ahead, 5)
    run(behind, 2)
    late, early = ahead.policy_state, behind.policy_state
    ahead.resume(changed(SPEC, incarnation="second", policy_state=early, first_window=2))
    assert (ahead.policy_state, ahead.next_window) == (late, 5)
    behind.resume(changed(SPEC, incarnation="second", policy_state=late, first_window=5))
    assert (behind.policy_state, behind.next_window) == (late, 5)


def test_settings_left_to_their_defaults_are_the_same_policy() -> None:
    fold = JobFold(SPEC)
    fold.resume(
        changed(SPEC, incarnation="second", policy=PolicySpec(name="gravac", settings={"cf_min": 10}))
    )
    assert fold.spec.incarnation == "second"


def test_another_setting_is_another_policy() -> None:
    other = GravacPolicy(**{**SPEC.policy.settings, "baseline": "any"})
    with pytest.raises(ValueError, match="policy: job 'job' runs"):
        JobFold(SPEC).resume(changed(SPEC, incarnation="second", policy=other.spec()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"job": "other"}, "this is 'job', got 'other'"),
        (
            {"policy": StaticPolicy(cf=3).spec()},
            "policy: job 'job' runs .*gravac.*got .*static.*use another job name",
        ),
        ({"policy": GravacPolicy(epsilon=0.4).spec()}, "policy: job 'job' runs"),
        ({"compressor": "randomk"}, "compressor: job 'job' runs 'topk', got 'randomk'"),
        ({"memory": "none"}, "memory: job 'job' runs 'residual', got 'none'"),
        ({"world_size": 3}, "world_size: incarnation 'first' registered with 2, got 3"),
        (
            {"policy_state": "{}", "incarnation": "second"},
            "policy_state: .*decision: is missing .*; leave it null",
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(change: dict[str, object], words: str) -> None:
    fold = JobFold(SPEC)
    run(fold, 3)
    before = fold.job_answer()
    with pytest.raises(ValueError, match=words):
        fold.resume(changed(SPEC, **change))
    assert fold.job_answer() == before
    assert fold.spec == SPEC


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: JobFold(job_spec(PolicySpec(name="none"))), "policy='none' is unknown"),
        (lambda: JobFold(job_spec(PolicySpec(name="static"))), "setting cf: is missing"),
        (lambda: JobFold(changed(SPEC, policy_state="{")), "policy_state: not a state of policy 'gravac'"),
        (lambda: JobFold(changed(SPEC, policy_state=JobFold(STATIC).policy_state)), "extended: is missing"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_be_built(make: Callable[[], JobFold], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_a_policy_that_is_not_registered_can_be_given() -> None:
    class Mine(DensePolicy):
        name = "mine"

    spec = job_spec(Mine().spec())
    fold = JobFold(spec, Mine())
    run(fold, 1)
    fold.resume(changed(spec, incarnation="second"))
    assert fold.spec.incarnation == "second"


def test_a_journaled_decision_is_adopted() -> None:
    fold = JobFold(SPEC)
    run(fold, 2)
    other = fold.decision.model_copy(update={"epoch": 9, "cf_minimum": 20.0, "cf_candidate": 20.0})
    fold.adopt(other)
    assert fold.decision == other
    run(fold, 1)
    assert fold.decision.epoch == 10


def test_a_window_skipped_at_the_start_is_not_taken_for_one_folded_before() -> None:
    """It must not be acknowledged: it was never journaled."""
    fold = JobFold(SPEC)
    late = CLUSTER.report(3, fold.decision)
    fold.decide(late)
    assert fold.judge(late) == "duplicate"
    for skipped in range(3):
        assert fold.judge(CLUSTER.report(skipped, fold.decision)) == "conflict"
