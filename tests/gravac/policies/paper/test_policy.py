"""Whole runs of the repaired policy on a simulated cluster."""

import random
from dataclasses import replace

import pytest

from gravac.policies import GravacPolicy
from gravac.policies.candidates import row
from gravac.policies.paper import explore
from gravac.protocol import WindowReport
from tools.harness.cluster import GAINS, Cluster, Run, level_sums

FLAT = dict.fromkeys(GAINS, 0.5)


def test_slow_link_climbs_while_it_pays_and_settles_on_the_best() -> None:
    cluster = Cluster(gains={10.0: 0.9, 20.0: 0.85, 40.0: 0.8, 160.0: 0.5, 1000.0: 0.2})
    run = Run(GravacPolicy(epsilon=0.1), cluster)
    final = run.until_hold()
    assert run.rules == ["start", "warmup", "explore", "climb", "climb", "climb", "saturated"]
    assert [d.cf_candidate for d in run.decisions] == [1, 1, 10, 20, 40, 160, 40]
    assert final.cf_minimum == final.cf_candidate == max((1.0, *GAINS), key=cluster.t_comp)
    assert final.reason == (
        "CF 160 keeps 0.50 of the gradient (≥ ε 0.10) and gives 253 useful samples/s against 353 at CF 40. "
        "Even with a free network no stronger CF can give more than 320, so none can beat 353 by more than 1 %. "
        "Holding CF 40: its 353 useful samples/s are the best measured."
    )
    assert run.decisions[3].reason == (
        "CF 10 keeps 0.90 of the gradient (≥ ε 0.10) and gives 262 useful samples/s against 58.2 dense: try CF 20."
    )
    assert [c.verdict for c in final.candidates] == [
        "passed",
        "passed",
        "passed",
        "chosen",
        "passed",
        "untried",
    ]


def test_fast_link_stays_dense_and_says_why() -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster(network_seconds=0.0018))
    final = run.until_hold()
    assert (final.rule, final.cf_candidate, final.window) == ("no_headroom", 1.0, 1)
    assert final.reason == (
        "Only 1.8 % of a dense step waits for the network, below 5 %: no CF can pay; staying dense."
    )
    assert run.windows(20).rule == "hold"
    assert run.last.epoch == final.epoch


def test_dense_wins_when_no_cf_could_pay_for_what_it_drops() -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster(network_seconds=0.05))
    final = run.until_hold()
    assert (final.rule, final.cf_candidate) == ("saturated", 1.0)
    assert "Even with a free network no stronger CF can give more than 384" in final.reason
    assert final.reason.endswith("Staying dense: its 427 samples/s beat every CF that passed.")


def test_climbs_past_a_first_rung_that_does_not_pay_when_a_stronger_one_may() -> None:
    # Dense 1.1 s; CF 10 is slowed by its compression, CF 40 is not held back by the wire any more.
    cluster = Cluster(gains={10.0: 0.9, 20.0: 0.9, 40.0: 0.9, 160.0: 0.9, 1000.0: 0.9}, network_seconds=8.0)
    seconds = cluster.network_seconds / 10 + 0.1
    run = Run(GravacPolicy(epsilon=0.1), cluster)
    run.until(lambda decision: decision.rule == "explore")
    slow = level_sums(run.last.epoch, 10.0, 50, 45, seconds * 9, seconds * 8.5)
    decision = run.windows(levels=(slow,))
    assert decision.rule == "climb"
    assert "does not pay yet, but a stronger CF may: try CF 20" in decision.reason


@pytest.mark.parametrize("seconds", [0.05, 0.2])
def test_a_network_that_becomes_faster_is_noticed(seconds: float) -> None:
    """The rate of the held CF moves by less than the drift: most of its step is compute and compression."""
    run = Run(GravacPolicy(), Cluster(compute_seconds=0.5, network_seconds=2.0))
    held = run.until_hold()
    run.windows(12)
    run.cluster = replace(run.cluster, network_seconds=seconds)
    run.windows(15)
    best = max((cf for cf in (1.0, *GAINS) if run.cluster.gain(cf) >= 0.3), key=run.cluster.t_comp)
    assert held.cf_candidate > run.last.cf_candidate == best
    assert any(
        "before" in decision.reason and "measuring them again" in decision.reason
        for decision in run.decisions
    )


def test_top_of_the_ladder() -> None:
    cluster = Cluster(network_seconds=100.0, gains=dict.fromkeys(GAINS, 0.95))
    run = Run(GravacPolicy(epsilon=0.1), cluster)
    final = run.until_hold()
    assert (final.rule, final.cf_candidate) == ("top", 1000.0)
    assert "is the end of the ladder" in final.reason


def test_minimum_rises_to_the_candidate_just_evaluated() -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster(gains=FLAT))
    run.until(lambda decision: decision.cf_candidate == 40.0)
    # Printed, the minimum would jump to 40 or beyond, which nobody has evaluated yet.
    assert run.last.cf_minimum == 20.0
    assert "CF 20 is the new minimum" in run.last.reason


def test_minimum_stays_when_gains_differ() -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster(gains={10.0: 0.9, 20.0: 0.88, 40.0: 0.8, 160.0: 0.7}))
    run.until(lambda decision: decision.cf_candidate == 160.0)
    assert run.last.cf_minimum == 10.0


def test_candidate_that_keeps_too_little_ends_the_climb() -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster(gains={10.0: 0.9, 20.0: 0.05}))
    final = run.until_hold()
    assert (final.rule, final.cf_candidate) == ("too_strong", 10.0)
    assert final.reason.startswith("CF 20 keeps only 0.050 of the gradient, below ε 0.10. Holding CF 10")
    assert row(final.candidates, 20.0).verdict == "too_strong"


def test_no_cf_passes() -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster(gains=dict.fromkeys(GAINS, 0.02)))
    final = run.until_hold()
    assert (final.rule, final.cf_candidate) == ("too_strong", 1.0)
    assert final.reason.endswith("Staying dense: no CF passed.")


def test_on_a_tie_the_lower_cf_is_held() -> None:
    run = Run(GravacPolicy(epsilon=0.1, omega=0.05), Cluster(gains=FLAT))
    final = run.until_hold()
    assert final.cf_candidate == 160.0
    assert "its 253 is within 5 % of the best (264 at CF 1000), and it compresses less" in final.reason


def test_candidate_with_too_few_settled_steps_gets_patience_then_fails() -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster())
    run.until(lambda decision: decision.rule == "explore")
    few = level_sums(run.last.epoch, 10.0, 4, 2, 0.2, 0.1)
    rules = [run.windows(levels=(few,)).rule for _ in range(3)]
    assert rules == ["extend", "extend", "too_strong"]
    assert run.decisions[-2].reason == (
        "CF 10 ran only 2 settled steps in window 3, 3 are needed to judge it: try it for another window."
    )
    assert run.last.cf_candidate == 1.0
    assert row(run.last.candidates, 10.0).verdict == "too_strong"


def test_patience_is_per_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "PATIENCE", 1)
    run = Run(GravacPolicy(epsilon=0.1), Cluster(gains={**GAINS, 10.0: 0.6, 20.0: 0.59}))
    run.until(lambda decision: decision.rule == "explore")
    few = level_sums(run.last.epoch, 10.0, 4, 2, 0.2, 0.1)
    assert run.windows(levels=(few,)).rule == "extend"
    assert run.windows().rule == "climb"
    few = level_sums(run.last.epoch, 20.0, 4, 2, 0.2, 0.1)
    assert run.windows(levels=(few,)).rule == "extend"


def test_a_short_window_never_becomes_a_baseline() -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster(window_steps=7))
    assert run.windows(5).rule == "warmup"
    assert "Only 2 settled dense steps in window 4, 3 are needed" in run.last.reason
    assert run.last.epoch == 0


def test_unusable_windows_change_nothing() -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster())
    run.until(lambda decision: decision.rule == "climb")
    before = run.state
    assert run.windows(phase="fallback").rule == "unusable"
    stale = level_sums(run.last.epoch - 1, 20.0, 50, 45, 0.1, 0.01)
    foreign = level_sums(run.last.epoch, 77.0, 50, 45, 0.1, 0.01)
    assert run.windows(levels=(stale, foreign)).rule == "unusable"
    assert run.last.model_copy(
        update={"window": 0, "reason": "", "rule": "start"}
    ) == before.decision.model_copy(update={"window": 0, "reason": "", "rule": "start"})
    assert run.windows().rule == "climb"


def test_noise_below_the_tolerance_does_not_move_the_answer() -> None:
    gains = {10.0: 0.9, 20.0: 0.87, 40.0: 0.85, 160.0: 0.4, 1000.0: 0.2}
    for seed in range(30):
        rng = random.Random(seed)
        run = Run(GravacPolicy(epsilon=0.1), Cluster(gains=gains))
        for _ in range(40):
            cf, wobble = run.cluster.sent(run.last), 1 + rng.uniform(-0.02, 0.02)
            seconds = run.cluster.step_seconds(cf) * wobble
            exposed = run.cluster.network_seconds / cf * wobble
            run.windows(levels=(level_sums(run.last.epoch, cf, 50, 45, seconds, exposed),))
        assert run.last.cf_candidate == 40.0
        assert run.rules.count("reexplore") == 0


def test_uncounted_samples_do_not_stop_it() -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster(samples_per_step=0))
    assert run.until_hold().cf_candidate == 10.0


def test_unknown_wait_for_the_network_explores() -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster())
    for _ in range(2):
        level = level_sums(0, 1.0, 50, 45, 1.1, None)
        run.windows(levels=(level,))
    assert run.last.rule == "explore"
    assert "not known" in run.last.reason


@pytest.mark.parametrize("changed", [{"ladder": "geometric"}, {"cf_max": 500}, {"ladder": [3, 9]}])
def test_a_state_from_another_ladder_starts_over(changed: dict[str, object]) -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster())
    run.until_hold()
    epoch = run.last.epoch
    run.policy = GravacPolicy(epsilon=0.2, **changed)
    decision = run.windows()
    assert (decision.rule, decision.phase, decision.epoch, decision.epsilon) == (
        "reexplore",
        "warmup",
        epoch + 1,
        0.2,
    )
    run.until_hold()


def test_a_new_epsilon_goes_on_with_the_state() -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster())
    run.until_hold()
    run.policy = GravacPolicy(epsilon=0.7)
    assert [(run.windows().rule, run.last.epsilon) for _ in range(2)] == [("hold", 0.7), ("scale_down", 0.7)]


@pytest.mark.parametrize("odd", [{"cf_minimum": 13.0}, {"cf_candidate": 1.0}, {"phase": "fallback"}])
def test_a_state_no_run_could_have_starts_over(odd: dict[str, object]) -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster())
    before = run.until(lambda decision: decision.rule == "climb")
    run.state = run.state.model_copy(update={"decision": before.model_copy(update=odd)})
    run.feed(run.cluster.report(before.window + 1, before))
    assert (run.last.rule, run.last.phase, run.last.cf_minimum) == ("reexplore", "warmup", 1.0)


def half_dense(run: Run, dense_seconds: float, cf: float, seconds: float) -> WindowReport:
    """A window in which the gate sent half the steps dense, after compressing."""
    epoch = run.last.epoch
    levels = (
        level_sums(epoch, 1.0, 25, 20, dense_seconds, 1.0),
        level_sums(epoch, cf, 25, 20, seconds, 0.1),
    )
    return run.cluster.report(len(run.decisions) - 1, run.last, levels=levels)


def test_dense_steps_that_paid_for_compressing_are_no_baseline() -> None:
    """A dense step takes 1.1 s, after compressing 1.4 s: 58.2 and 45.7 samples/s. CF 10 gives 52.4 useful ones."""
    cluster = Cluster(gains={10.0: 0.9, 20.0: 0.05}, network_seconds=1.0)
    run = Run(GravacPolicy(epsilon=0.1, ladder=[10]), cluster)
    run.until(lambda decision: decision.rule == "explore")
    run.feed(half_dense(run, 1.4, 10.0, 1.1))
    assert row(run.last.candidates, 1.0).samples_per_second == pytest.approx(64 / 1.1)
    assert (run.last.phase, run.last.cf_candidate) == ("hold", 1.0)
    assert "Staying dense: its 58.2 samples/s" in run.last.reason


def test_nor_are_they_while_a_cf_is_held() -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster())
    assert run.until_hold().cf_candidate == 10.0
    run.feed(half_dense(run, 1.4, 10.0, 0.2))
    assert row(run.last.candidates, 1.0).samples_per_second == pytest.approx(64 / 1.1)


def test_a_dense_decision_measures_the_baseline_again() -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster(network_seconds=0.0018))
    assert run.until_hold().cf_candidate == 1.0
    run.change(compute_seconds=0.09)
    run.windows()
    assert row(run.last.candidates, 1.0).samples_per_second == pytest.approx(64 / 0.0918)


def test_any_dense_step_may_be_the_baseline() -> None:
    run = Run(GravacPolicy(epsilon=0.1, baseline="any"), Cluster())
    run.until(lambda decision: decision.rule == "explore")
    run.feed(half_dense(run, 1.4, 10.0, 0.2))
    assert row(run.last.candidates, 1.0).samples_per_second == pytest.approx(64 / 1.4)
