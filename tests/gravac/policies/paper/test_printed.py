"""``variant="paper"`` against Algorithm 1 worked out by hand, in the printed order a, b, c, defects included."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gravac.policies import GravacPolicy
from gravac.policies.paper.printed import reachable
from gravac.protocol import SmoothedGain
from tests.support.algorithm1 import Algorithm1
from tools.harness.cluster import Cluster, Run, level_sums, window_report

PAIRS = [(10.0, 20.0), (10.0, 40.0), (10.0, 160.0), (10.0, 1000.0), (10.0, 1000.0)]


def levels_with(
    decision_epoch: int, useful: dict[float, float], gains: dict[float, float]
) -> dict[str, object]:
    """A window in which each CF of ``useful`` had that T_comp (64 samples a step)."""
    return {
        "levels": tuple(
            level_sums(decision_epoch, cf, 10, 5, 64 * gains[cf] / value, None)
            for cf, value in useful.items()
        ),
        "gains": tuple(SmoothedGain(cf=cf, gain=gain) for cf, gain in gains.items() if cf > 1),
        "samples": 3200,
    }


def test_exponential_multiplies_as_printed() -> None:
    run = Run(GravacPolicy(variant="paper"), Cluster())
    run.windows(4)
    assert [(d.cf_minimum, d.cf_candidate) for d in run.decisions] == PAIRS
    assert [d.phase for d in run.decisions] == ["explore"] * 5
    assert run.rules == ["start", "climb", "climb", "climb", "extend"]


def test_geometric_doubles() -> None:
    run = Run(
        GravacPolicy(variant="paper", ladder="geometric", cf_max=2000),
        Cluster(gains={10.0: 0.9}, network_seconds=9),
    )
    run.windows(9)
    assert [d.cf_candidate for d in run.decisions] == [20, 40, 80, 160, 320, 640, 1280, 2000, 2000, 2000]


def test_defect_one_the_minimum_jumps_to_a_cf_nobody_evaluated() -> None:
    # Equal gains at 10 and 20. (a) squares the multiplier 2 to 4 before (b) uses it: the minimum becomes
    # 4 x 10 = 40, though 20 was the CF just evaluated.
    run = Run(GravacPolicy(variant="paper"), Cluster())
    decision = run.windows(**levels_with(0, {20.0: 100.0}, {10.0: 0.50, 20.0: 0.50}))
    assert decision.cf_minimum == 40.0
    # Defect two: the multiplier is not re-based, so the candidate is 4 x 40, not 2 x 40.
    assert decision.cf_candidate == 160.0
    # And again: 4 squared is 16, but 16 x 40 = 640; equal gains: minimum 640; 16 x 640 is capped at 1000.
    decision = run.windows(**levels_with(1, {160.0: 200.0}, {40.0: 0.30, 160.0: 0.30}))
    assert (decision.cf_minimum, decision.cf_candidate) == (640.0, 1000.0)


def test_gains_just_outside_omega_leave_the_minimum() -> None:
    run = Run(GravacPolicy(variant="paper"), Cluster())
    decision = run.windows(**levels_with(0, {20.0: 100.0}, {10.0: 0.500, 20.0: 0.494}))
    assert decision.cf_minimum == 10.0


def test_defect_three_the_second_largest_wins_and_need_not_be_a_neighbour() -> None:
    run = Run(GravacPolicy(variant="paper"), Cluster())
    run.windows(**levels_with(0, {20.0: 100.0}, {10.0: 0.9, 20.0: 0.6}))
    run.windows(**levels_with(1, {40.0: 50.0}, {10.0: 0.9, 40.0: 0.5}))
    # 160 gives 100.9: within 1 % of the 100 at CF 20, two rungs away. The CF of the second largest is held.
    decision = run.windows(**levels_with(2, {160.0: 100.9}, {10.0: 0.9, 160.0: 0.4}))
    assert (decision.phase, decision.rule, decision.cf_candidate, decision.cf_minimum) == (
        "hold",
        "saturated",
        20.0,
        10.0,
    )
    assert decision.reason == (
        "The two best T_comp, 101 at CF 160 and 100 at CF 20, are within 1 %: holding CF 20, the second best."
    )


def test_second_best_may_be_the_higher_cf() -> None:
    run = Run(GravacPolicy(variant="paper"), Cluster())
    run.windows(**levels_with(0, {20.0: 100.5}, {10.0: 0.9, 20.0: 0.6}))
    decision = run.windows(**levels_with(1, {40.0: 100.0}, {10.0: 0.9, 40.0: 0.5}))
    assert (decision.phase, decision.cf_candidate) == ("hold", 40.0)


def test_newest_value_overwrites() -> None:
    run = Run(GravacPolicy(variant="paper"), Cluster())
    run.windows(**levels_with(0, {10.0: 100.0, 20.0: 300.0}, {10.0: 0.9, 20.0: 0.6}))
    # 10 is sent again and now gives 200; against 300 that is not saturation, against 298 at 40 it is.
    decision = run.windows(**levels_with(1, {10.0: 200.0, 40.0: 250.0}, {10.0: 0.9, 40.0: 0.5}))
    assert decision.phase == "explore"
    decision = run.windows(**levels_with(2, {10.0: 301.0, 160.0: 20.0}, {10.0: 0.9, 160.0: 0.2}))
    assert (decision.phase, decision.cf_candidate) == ("hold", 20.0)


def test_dense_counts_when_the_gate_sent_it() -> None:
    run = Run(GravacPolicy(variant="paper"), Cluster())
    decision = run.windows(**levels_with(0, {1.0: 100.0, 20.0: 100.2}, {1.0: 1.0, 10.0: 0.9, 20.0: 0.6}))
    assert (decision.phase, decision.cf_candidate, decision.cf_minimum) == ("hold", 1.0, 1.0)


def test_it_stops_for_good() -> None:
    run = Run(GravacPolicy(variant="paper"), Cluster())
    run.windows(**levels_with(0, {10.0: 100.0, 20.0: 100.0}, {10.0: 0.9, 20.0: 0.6}))
    held = run.last
    run.change(network_seconds=50.0)
    for _ in range(20):
        decision = run.windows()
        assert (decision.rule, decision.epoch, decision.cf_candidate) == (
            "hold",
            held.epoch,
            held.cf_candidate,
        )


def test_unmeasured_gains_and_zero_gains_do_not_raise() -> None:
    run = Run(GravacPolicy(variant="paper"), Cluster())
    run.windows(gains=())
    assert (run.last.cf_minimum, run.last.cf_candidate) == (10.0, 40.0)
    run.windows(**levels_with(1, {40.0: 1.0}, {10.0: 0.0, 40.0: 0.0}) | {"levels": ()})
    assert run.last.rule == "unusable"
    level = level_sums(1, 40.0, 10, 5, 0.1, None)
    zero = tuple(SmoothedGain(cf=cf, gain=0.0) for cf in (10.0, 40.0))
    run.feed(window_report(window=2, phase="explore", epoch=1, cf=40.0, levels=(level,), gains=zero))
    assert (run.last.cf_minimum, run.last.cf_candidate) == (10.0, 160.0)


@pytest.mark.parametrize("ladder", ["exponential", "geometric"])
def test_only_reachable_cfs_are_ever_used(ladder: str) -> None:
    policy = GravacPolicy(variant="paper", ladder=ladder, cf_min=7, cf_max=900)
    for equal in range(64):  # every pattern of "the two gains are equal" over six windows
        run = Run(policy, Cluster())
        for bit in range(6):
            low, high = run.last.cf_minimum, run.last.cf_candidate
            gains = {low: 0.5, high: 0.5 if equal >> bit & 1 else 0.3}
            run.windows(**levels_with(run.last.epoch, {high: 2.0**bit}, gains))
            assert {run.last.cf_minimum, run.last.cf_candidate} <= set(reachable(policy.settings))
            assert run.last.cf_minimum <= run.last.cf_candidate


def test_a_state_of_the_fixed_variant_starts_the_printed_one_afresh() -> None:
    run = Run(GravacPolicy(), Cluster())
    run.until_hold()
    epoch = run.last.epoch
    run.policy = GravacPolicy(variant="paper")
    decision = run.windows()
    assert (decision.cf_minimum, decision.cf_candidate, decision.epoch) == (10.0, 20.0, epoch + 1)
    run.policy = GravacPolicy()
    assert run.windows().phase == "warmup"


CLOSE = st.sampled_from([0.3, 0.4, 0.401, 0.5, 0.502, 0.8, 0.9, 1.0])
"""Gains of which some are within 1 %."""
WINDOW = st.tuples(CLOSE, CLOSE, st.sampled_from([0.1, 0.1005, 0.2, 0.201, 0.4, 0.9]))
"""Gain of the minimum and of the candidate, and the seconds of a step."""


@given(
    exponential=st.booleans(),
    cf_min=st.floats(1.5, 60),
    cf_max=st.floats(60, 5000),
    epsilon=st.sampled_from([0.0, 0.4, 0.7, 0.9]),
    omega=st.sampled_from([0.0, 0.01, 0.3]),
    windows=st.lists(WINDOW, min_size=1, max_size=12),
)
# 1.7 times (900 / 1.7) is less than 900: a candidate that is not on the ladder, and so is never measured.
@example(True, 1.7, 900.0, 0.0, 0.0, [(0.9, 0.3, seconds) for seconds in (0.9, 0.4, 0.2, 0.1, 0.05, 0.03)])
def test_the_policy_does_what_the_plain_algorithm_does(
    exponential: bool,
    cf_min: float,
    cf_max: float,
    epsilon: float,
    omega: float,
    windows: list[tuple[float, float, float]],
) -> None:
    ladder = "exponential" if exponential else "geometric"
    policy = GravacPolicy(
        variant="paper", ladder=ladder, cf_min=cf_min, cf_max=cf_max, epsilon=epsilon, omega=omega
    )
    run, plain = Run(policy, Cluster()), Algorithm1(cf_min, cf_max, epsilon, omega, exponential)
    for low, high, seconds in windows:
        minimum, candidate = run.last.cf_minimum, run.last.cf_candidate
        assert (minimum, candidate) == (plain.cf_min, plain.candidate)
        gains = {minimum: low, candidate: high, 1.0: 1.0}  # one gain where they are one CF
        sent = plain.gate(gains[minimum], gains[candidate])
        plain.record(sent, 64 / seconds, gains[sent])
        plain.check(gains[minimum], gains[candidate])
        run.windows(**levels_with(run.last.epoch, {sent: 64 / seconds * gains[sent]}, gains))
        assert (run.last.phase == "hold") == (plain.ideal is not None)
        rows = {row.cf: row.useful_samples_per_second for row in run.last.candidates}
        assert {cf: value for cf, value in rows.items() if value is not None} == pytest.approx(
            plain.throughput
        )
    assert (run.last.cf_minimum, run.last.cf_candidate) == (plain.cf_min, plain.candidate)
