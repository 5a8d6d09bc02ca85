"""What must hold for every policy on every valid report, however odd."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.policies import POLICIES, Policy, PolicyState, parse
from gravac.protocol import Decision, SmoothedGain, WindowReport
from tools.harness.cluster import job_spec, level_sums, policy_lines, window_report

POLICY_LINES = policy_lines()
FACTORS = [1.0, 2.0, 3.0, 9.0, 10.0, 20.0, 27.0, 40.0, 50.0, 100.0, 160.0, 1000.0]
seconds = st.one_of(st.none(), st.sampled_from([0.0, 5e-324, 1e-9, 0.1, 1.0, 1e9]), st.floats(0, 10))
counts = st.one_of(st.integers(0, 60), st.just(2**53))


@st.composite
def reports(draw: st.DrawFn, window: int, decision: Decision) -> WindowReport:
    """Any report; half of its levels and gains are about the decision in force, so that rules fire."""
    near = st.sampled_from([1.0, decision.cf_minimum, decision.cf_candidate])
    factors = st.one_of(near, st.sampled_from(FACTORS))
    codecs = st.sampled_from([decision.codec, None])
    epochs = st.one_of(st.just(decision.epoch), st.integers(0, 40))
    levels = draw(
        st.lists(
            st.builds(level_sums, epochs, factors, st.integers(0, 50), counts, seconds, seconds, codecs),
            max_size=5,
        )
    )
    gains = draw(
        st.lists(
            st.builds(
                SmoothedGain,
                cf=factors,
                gain=st.sampled_from([0.0, 0.05, 0.1, 0.5, 0.505, 1.0, 1 + 1e-6]),
                codec=codecs,
            ),
            max_size=4,
        )
    )
    first = draw(st.integers(0, 1000))
    changes: dict[str, Any] = {
        "window": window,
        "first_step": first,
        "last_step": draw(st.integers(0, 2000)),
        "epoch": draw(epochs),
        "phase": draw(st.sampled_from(["warmup", "explore", "hold", "hold", "fallback"])),
        "samples": draw(counts),
        "levels": tuple(levels),
        "gains": tuple(gains),
    }
    return window_report(**changes)


def way_of_sending(decision: Decision) -> tuple[str, float, float, str | None]:
    return decision.phase, decision.cf_minimum, decision.cf_candidate, decision.codec


def of_a_job(line: str) -> Policy:
    """Return the policy as the controller has it."""
    policy = parse(line)
    return policy.fitted(job_spec(policy.spec(), compressor="topk+bf16"))


def check_cfs(policy: Policy, decision: Decision) -> None:
    assert 1.0 <= decision.cf_minimum <= decision.cf_candidate <= policy.largest_cf()
    if policy.ladder():
        assert {decision.cf_minimum, decision.cf_candidate} <= set(policy.ladder())


@pytest.mark.parametrize("line", POLICY_LINES)
@settings(max_examples=25)
@given(data=st.data())
def test_every_decision_is_sound(line: str, data: st.DataObject) -> None:
    policy = of_a_job(line)
    verdict = policy.start()
    check_cfs(policy, verdict.decision)
    for window in range(data.draw(st.integers(1, 12))):
        report = data.draw(reports(window, verdict.decision))
        before, state = verdict.decision, verdict.state
        verdict = policy.decide(state, report)
        after = verdict.decision

        assert after.window == window
        check_cfs(policy, after)
        assert after.phase != "fallback"
        changed = way_of_sending(after) != way_of_sending(before)
        assert after.epoch == before.epoch + changed
        assert after.reason
        assert verdict.state.decision == after
        # Valid by the models' own rules, which model_copy does not check.
        assert policy.State.model_validate_json(verdict.state.model_dump_json()) == verdict.state
        # Same again, and the same from a state and a report that went through JSON.
        through: PolicyState = policy.State.model_validate_json(state.model_dump_json())
        again = policy.decide(through, WindowReport.model_validate_json(report.model_dump_json()))
        assert again.decision.model_dump_json() == after.model_dump_json()
        assert again.state.model_dump_json() == verdict.state.model_dump_json()


def pairs(name: str) -> list[tuple[str, str]]:
    own = [line for line in POLICY_LINES if line.partition(":")[0] == name]
    return [(line, other) for line in own for other in own if line != other]


@pytest.mark.parametrize("name", [name for name in sorted(POLICIES) if pairs(name)])
@settings(max_examples=40)
@given(data=st.data())
def test_a_state_from_other_settings_is_continued(name: str, data: st.DataObject) -> None:
    policy, successor = map(of_a_job, data.draw(st.sampled_from(pairs(name))))
    verdict = policy.start()
    for window in range(data.draw(st.integers(0, 6))):
        verdict = policy.decide(verdict.state, data.draw(reports(window, verdict.decision)))
    epoch = verdict.decision.epoch
    for window in range(6, 9):
        report = data.draw(
            reports(window, verdict.decision).filter(lambda report: report.phase != "fallback")
        )
        verdict = successor.decide(verdict.state, report)
        assert verdict.decision.epoch >= epoch
        epoch = verdict.decision.epoch
        check_cfs(successor, verdict.decision)


def test_every_registered_policy_is_checked_here() -> None:
    assert {line.partition(":")[0] for line in POLICY_LINES} == set(POLICIES)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_says_what_it_is(name: str) -> None:
    policy = POLICIES[name]
    assert policy.name == name
    assert policy.__doc__
    assert policy.source
    for line in POLICY_LINES:
        if line.partition(":")[0] == name:
            ladder = parse(line).ladder()
            assert list(ladder) == sorted(set(ladder))
            assert 0.0 < parse(line).smoothing(4) <= 1.0
