"""Operators' orders: obeyed from the next window on, explained, replayed; afterwards the policy continues unchanged."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac.fold import JobFold
from gravac.policies import parse
from gravac.protocol import CodecSize, Decision, Override
from gravac.replays.replay import check, replay
from gravac.traces import TraceWriter, read_trace
from tests.support.traces_made import Ticker
from tools.harness.cluster import Cluster, job_spec, policy_lines

POLICIES = policy_lines()
CLUSTER = Cluster()


def order(fold: JobFold, action: str, cf: float | None = None, note: str = "") -> Override:
    given = {"action": action, "cf": cf, "actor": "alice", "note": note, "epoch": fold.decision.epoch}
    override = Override.model_validate(given)
    fold.order(override)
    return override


def start(policy: str) -> JobFold:
    return JobFold(job_spec(parse(policy).spec()))


def run(fold: JobFold, windows: int) -> list[Decision]:
    return [fold.decide(CLUSTER.report(fold.next_window, fold.decision)) for _ in range(windows)]


def sending(decision: Decision) -> tuple[str, float, float, float]:
    return decision.phase, decision.cf_minimum, decision.cf_candidate, decision.epsilon


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cf", [1.0, 10.0, 33.5, 1e6])
def test_a_pinned_cf_is_sent_whatever_its_gain(policy: str, cf: float) -> None:
    fold = start(policy)
    run(fold, 3)
    before = fold.decision
    order(fold, "pin", cf)
    assert fold.decision == before  # nothing changes before the window is over
    obeyed, *later = run(fold, 5)
    assert sending(obeyed) == ("hold", cf, cf, 0.0)
    assert (obeyed.rule, obeyed.epoch) == ("pinned", before.epoch + 1)
    assert "alice" in obeyed.reason
    assert {sending(one) for one in later} == {sending(obeyed)}
    assert {one.epoch for one in later} == {obeyed.epoch}
    assert all("alice" in one.reason for one in later)
    assert CLUSTER.sent(fold.decision) == cf


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("action", ["pin", "dense", "pause"])
@pytest.mark.parametrize("at", [0, 1, 3, 5, 9])
def test_after_resuming_the_policy_decides_what_it_would_have_decided(
    policy: str, action: str, at: int
) -> None:
    undisturbed, fold = start(policy), start(policy)
    run(undisturbed, at)
    run(fold, at)
    order(fold, action, 55.0 if action == "pin" else None)
    run(fold, 3)
    order(fold, "resume", note="seen enough")
    (resumed,) = run(fold, 1)
    assert resumed.rule == "resumed"
    assert "alice gave the decision back" in resumed.reason
    assert "seen enough" in resumed.reason
    assert sending(resumed) == sending(undisturbed.decision)
    assert resumed.epoch == undisturbed.decision.epoch + 2
    assert fold.override is None
    expected = [(sending(one), one.rule, one.epoch + 2) for one in run(undisturbed, 8)]
    assert [(sending(one), one.rule, one.epoch) for one in run(fold, 8)] == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_no_decision_names_a_cf_that_the_compressor_does_not_reach(policy: str) -> None:
    """Other codecs reach what is asked for here; ``auto`` takes only plans that it knows."""
    if "variant=paper" in policy or "preset=paper" in policy:
        return  # relative factors, as printed
    one = (CodecSize(codec=None, cf=3.9, up_to=1e9),)
    few = (CodecSize(codec=None, cf=5.7, up_to=6.0), CodecSize(codec=None, cf=25.6, up_to=1e9))
    for sizes in (one, few):
        spec = job_spec(parse(policy).spec(), sizes=sizes)
        fold = JobFold(spec)
        decisions = [fold.decision, *run(fold, 30)]
        named = {
            cf
            for decision in decisions
            if decision.codec is None
            for cf in (
                decision.cf_minimum,
                decision.cf_candidate,
                *(row.cf for row in decision.candidates if not row.codec),
            )
        }
        assert named <= {1.0, *(size.cf for size in sizes)}
        assert fold.policy.spec() == parse(policy).spec()
        assert policy.startswith(("dense", "auto", "static:cf=1,")) or max(named) > 1.0


def test_a_codec_sends_the_size_that_was_asked_for_or_the_next() -> None:
    sizes = [CodecSize(codec=None, cf=cf, up_to=up_to) for cf, up_to in ((4.0, 4.0), (7.9, 8.0), (15.5, 1e9))]
    spec = job_spec(parse("dense").spec(), sizes=tuple(sizes))
    asked = (1.0, 3.0, 4.0, 4.5, 7.9, 8.0, 8.5, 15.5, 1000.0)
    assert [spec.reached(None, cf) for cf in asked] == [1.0, 4.0, 4.0, 7.9, 7.9, 7.9, 15.5, 15.5, 15.5]
    assert spec.reached("topk", 20.0) == 20.0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("action", ["pin", "dense", "pause", "none"])
def test_an_order_ends_with_its_start_of_the_trainer(policy: str, action: str, tmp_path: Path) -> None:
    """The next start goes on where the policy was, with a reason, and the journal replays."""
    undisturbed, fold = start(policy), start(policy)
    run(undisturbed, 4)
    path = tmp_path / "journal.jsonl"
    with TraceWriter(path, Ticker()) as writer:
        writer.append(fold.spec, fold.decision)
        for number in range(7):
            if number == 4 and action != "none":
                writer.append(order(fold, action, 33.5 if action == "pin" else None, note="a try"))
            report = CLUSTER.report(fold.next_window, fold.decision)
            writer.append(report, fold.decide(report))
        before = fold.decision
        again = fold.spec.model_copy(update={"incarnation": "second"})
        said = fold.resume(again)
        writer.append(again, fold.decision)
        if action == "none":
            assert said == ""
            assert fold.decision == before
        else:
            assert (
                f"The order of alice ({action}, because: a try) ended with the start of the training" in said
            )
            assert fold.override is None
            assert (fold.decision.rule, fold.decision.epoch) == ("resumed", before.epoch + 1)
            assert fold.decision.reason == said
            assert sending(fold.decision) == sending(undisturbed.decision)
            expected = [(sending(one), one.rule) for one in run(undisturbed, 5)]
            for wanted in expected:
                report = CLUSTER.report(fold.next_window, fold.decision, incarnation="second")
                decision = fold.decide(report)
                writer.append(report, decision)
                assert (sending(decision), decision.rule) == wanted
        late = order(fold, "dense")
        writer.append(late, again.model_copy(update={"incarnation": "third"}))
        assert "(dense) came too late" in fold.resume(again.model_copy(update={"incarnation": "third"}))
        writer.append(fold.decision)
    assert (fold.pending_override, fold.orders_waiting) == (None, 0)
    found = check(path)
    assert found.ok, found.differences


def test_dense_is_dense_and_the_note_is_told() -> None:
    fold = start("static:cf=40")
    order(fold, "dense", note="the loss looks odd")
    (decision,) = run(fold, 1)
    assert sending(decision)[:3] == ("hold", 1.0, 1.0)
    assert decision.reason == "alice ordered dense until further notice, because: the loss looks odd"


def test_pausing_while_exploring_holds_the_minimum_and_epsilon_still_guards() -> None:
    fold = start("gravac")
    while fold.decision.cf_candidate == fold.decision.cf_minimum:
        run(fold, 1)
    exploring = fold.decision
    assert exploring.phase == "explore"
    order(fold, "pause")
    paused = run(fold, 3)[-1]
    assert sending(paused) == ("hold", exploring.cf_minimum, exploring.cf_minimum, exploring.epsilon)
    assert (paused.rule, paused.epoch) == ("paused", exploring.epoch + 1)


def test_the_newest_of_several_orders_counts_and_a_taken_back_one_does_nothing() -> None:
    undisturbed, fold = start("gravac"), start("gravac")
    run(undisturbed, 2)
    run(fold, 2)
    order(fold, "pin", 500.0)
    order(fold, "pin", 77.0)
    assert fold.orders_waiting == 2
    assert run(fold, 1)[0].cf_candidate == 77.0
    assert fold.orders_waiting == 0
    order(fold, "dense")
    order(fold, "pin", 88.0)  # over an order: the policy's own decision is still the one to come back to
    run(fold, 1)
    order(fold, "resume")
    assert sending(run(fold, 1)[0]) == sending(undisturbed.decision)
    order(fold, "pin", 77.0)
    order(fold, "resume")  # before the window is over
    expected = [(sending(one), one.rule) for one in run(undisturbed, 4)]
    assert [(sending(one), one.rule) for one in run(fold, 4)] == expected


@given(
    policy=st.sampled_from(POLICIES),
    script=st.lists(
        st.sampled_from(["window", "window", "window", "pin", "dense", "pause", "resume", "restart"]),
        max_size=40,
    ),
)
def test_any_mixture_of_orders_keeps_epochs_growing_and_states_whole(policy: str, script: list[str]) -> None:
    fold = start(policy)
    for word in script:
        before = fold.decision
        if word == "window":
            pending = fold.pending_override
            (decision,) = run(fold, 1)
            taken = pending is not None and not (
                pending.action == "resume" and before.rule not in ("pinned", "paused")
            )
            moved = sending(decision)[:3] != sending(before)[:3]
            assert decision.epoch == before.epoch + (taken or moved)
            assert (fold.override is not None) == (decision.rule in ("pinned", "paused"))
            if fold.override is not None or decision.rule == "resumed":
                assert "alice" in decision.reason
        elif word == "restart":  # of a job whose journal is lost: the state alone must do
            spec = fold.spec.model_copy(
                update={"policy_state": fold.policy_state, "first_window": fold.next_window}
            )
            again, pending = JobFold(spec), fold.pending_override
            assert (again.decision, again.override, again.policy_state) == (
                fold.decision,
                fold.override,
                fold.policy_state,
            )
            fold = again
            if pending is not None:
                fold.order(pending)
        else:
            order(fold, word, 25.0 if word == "pin" else None)


def test_a_trace_with_orders_replays_byte_for_byte(tmp_path: Path) -> None:
    path, fold = tmp_path / "journal.jsonl", start("gravac")
    with TraceWriter(path, Ticker()) as writer:
        writer.append(fold.spec, fold.decision)

        def windows(count: int) -> None:
            for _ in range(count):
                report = CLUSTER.report(fold.next_window, fold.decision)
                writer.append(report, fold.decide(report))

        windows(4)
        writer.append(order(fold, "pin", 33.5))
        windows(3)
        writer.append(order(fold, "pause"), order(fold, "resume"))
        windows(5)
    found = check(path)
    assert found.ok, found.differences
    rules = [row.replayed.rule for row in replay(read_trace(path)).decisions]
    assert rules.count("pinned") == 3
    assert rules.count("resumed") == 1
    other = replay(read_trace(path), parse("static:cf=100"))  # orders hold whatever the rule
    assert [row.replayed.cf_candidate for row in other.decisions if row.replayed.rule == "pinned"] == [
        33.5
    ] * 3
    assert other.decisions[-1].replayed.cf_candidate == 100
    without = [
        line for line in path.read_bytes().splitlines(keepends=True) if b'"kind":"override"' not in line
    ]
    path.write_bytes(b"".join(without))
    found = check(path)
    assert any("pinned" in difference.message for difference in found.differences)


def test_half_a_state_is_refused() -> None:
    fold = start("static:cf=40")
    order(fold, "dense")
    run(fold, 1)
    state = fold.policy_state.replace('"suspended":{', '"suspended":null,"x":{')
    with pytest.raises(ValueError, match="policy_state"):
        JobFold(fold.spec.model_copy(update={"policy_state": state}))
