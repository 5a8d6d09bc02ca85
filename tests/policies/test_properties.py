"""What must hold for every policy on every valid report, however odd."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.policies import POLICIES, Policy, PolicyState, parse
from gravac.policies.gravac.paper import reachable
from gravac.protocol import Decision, SmoothedGain, WindowReport
from tests.support.policies import level_sums, window_report

POLICY_LINES = [
    "gravac",
    "gravac:ladder=geometric,cf_max=100,patience=0,cooldown_windows=1,warmup_windows=1,headroom_ratio=0",
    "gravac:ladder=3/9/27,epsilon=0.5,omega=0.2,min_settled=1",
    "gravac:epsilon=1,omega_throughput=0",
    "gravac:variant=paper",
    "gravac:variant=paper,ladder=geometric,cf_min=3,cf_max=50,omega=0.3",
    "static:cf=40,warmup_windows=2",
    "static:cf=1,epsilon=1",
    "dense",
    "warmup:windows=2",
    "warmup:cf=40,ramp=3/9/27,windows=1,dense_windows=2,epsilon=0.5",
]
FACTORS = [1.0, 2.0, 3.0, 9.0, 10.0, 20.0, 27.0, 40.0, 50.0, 100.0, 160.0, 1000.0]
seconds = st.one_of(st.none(), st.sampled_from([0.0, 5e-324, 1e-9, 0.1, 1.0, 1e9]), st.floats(0, 10))
counts = st.one_of(st.integers(0, 60), st.just(2**53))


@st.composite
def reports(draw: st.DrawFn, window: int, decision: Decision) -> WindowReport:
    """Any report; half of its levels and gains are about the decision in force, so that rules fire."""
    near = st.sampled_from([1.0, decision.cf_minimum, decision.cf_candidate])
    factors = st.one_of(near, st.sampled_from(FACTORS))
    epochs = st.one_of(st.just(decision.epoch), st.integers(0, 40))
    levels = draw(
        st.lists(
            st.builds(level_sums, epochs, factors, st.integers(0, 50), counts, seconds, seconds), max_size=5
        )
    )
    gains = draw(
        st.lists(
            st.builds(
                SmoothedGain, cf=factors, gain=st.sampled_from([0.0, 0.05, 0.1, 0.5, 0.505, 1.0, 1 + 1e-6])
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


def allowed(policy: Policy) -> set[float]:
    spec = policy.spec()
    if spec.name == "dense":
        return {1.0}
    made: Any = POLICIES[spec.name](**spec.settings)
    if spec.name == "static":
        return {1.0, made.settings.cf}
    if spec.name == "warmup":
        return {1.0, *made.settings.rungs}
    return set(reachable(made.settings) if made.settings.variant == "paper" else made.settings.rungs)


def way_of_sending(decision: Decision) -> tuple[str, float, float]:
    return decision.phase, decision.cf_minimum, decision.cf_candidate


@settings(max_examples=150)
@given(st.sampled_from(POLICY_LINES), st.data())
def test_every_decision_is_sound(line: str, data: st.DataObject) -> None:
    policy = parse(line)
    factors = allowed(policy)
    verdict = policy.start()
    for window in range(data.draw(st.integers(1, 12))):
        report = data.draw(reports(window, verdict.decision))
        before, state = verdict.decision, verdict.state
        verdict = policy.decide(state, report)
        after = verdict.decision

        assert after.window == window
        assert {after.cf_minimum, after.cf_candidate} <= factors
        assert after.cf_minimum <= after.cf_candidate
        assert after.cf_candidate <= policy.largest_cf() <= max(factors)
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


@settings(max_examples=80)
@given(st.sampled_from(POLICY_LINES), st.sampled_from(POLICY_LINES), st.data())
def test_a_state_from_other_settings_is_gone_on_from(line: str, other: str, data: st.DataObject) -> None:
    policy, successor = parse(line), parse(other)
    if policy.State is not successor.State:
        return
    verdict = policy.start()
    for window in range(data.draw(st.integers(0, 6))):
        verdict = policy.decide(verdict.state, data.draw(reports(window, verdict.decision)))
    factors = allowed(successor)
    epoch = verdict.decision.epoch
    for window in range(6, 9):
        report = data.draw(
            reports(window, verdict.decision).filter(lambda report: report.phase != "fallback")
        )
        verdict = successor.decide(verdict.state, report)
        assert verdict.decision.epoch >= epoch
        epoch = verdict.decision.epoch
        if successor.spec().name == "gravac":
            assert {verdict.decision.cf_minimum, verdict.decision.cf_candidate} <= factors


def test_every_registered_policy_is_checked_here() -> None:
    assert {line.partition(":")[0] for line in POLICY_LINES} == set(POLICIES)
