"""What policy gravac does while it holds: looks, drift, steps down, and tries that may be in vain."""

from itertools import pairwise

import pytest

from gravac.policies import GravacPolicy
from gravac.policies.candidates import row
from gravac.policies.paper import hold
from tools.harness.cluster import GAINS, Cluster, Run, level_sums


def test_looks_at_a_network_that_stays_are_rare_and_short() -> None:
    run = Run(GravacPolicy(), Cluster(compute_seconds=0.5, network_seconds=2.0))
    run.until_hold()
    run.windows(1000)
    looks = [decision for decision in run.decisions if decision.rule == "reexplore"]
    assert 2 <= len(looks) <= 5
    assert all(each.window_steps == 10 for each in looks)
    pauses = [after.window - before.window for before, after in pairwise(looks)]
    assert pauses == sorted(pauses)
    assert run.last.phase == "hold"
    assert run.last.window_steps is None


def test_what_measures_dense_again_has_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a link that became 100 times slower, ten dense steps would take nine minutes (promise P12)."""
    monkeypatch.setattr(hold, "COOLDOWN_WINDOWS", 1)
    run = Run(GravacPolicy(epsilon=0.1), Cluster())
    run.until_hold()
    run.windows(3)
    held = run.last.cf_candidate
    run.change(network_seconds=100.0 * run.cluster.network_seconds)
    assert "but drifting" in run.windows().reason
    drifted = run.windows()
    assert (drifted.rule, drifted.cf_candidate, drifted.trial) == ("hold", held, None)
    assert "more than a trial may cost by now: holding it" in drifted.reason
    assert row(drifted.candidates, 1.0).samples_per_second is None, "what it was is no knowledge any more"
    assert run.until(lambda decision: decision.phase != "hold").phase == "explore", "a stronger CF sends less"
    run.until_hold()
    dense = run.cluster.step_seconds(1.0)
    looked = run.until(lambda decision: decision.phase == "warmup", most=5000)
    cost = (10 + 3) * (dense - run.cluster.step_seconds(looked.trial.cf))
    total = sum(report.seconds for report in run.reports)
    assert cost <= 0.2 * 60 + 0.02 * (total - 60)
    assert looked.window_steps == 10
    assert looked.trial.step_seconds >= 3 * 0.9 * dense


def test_a_step_too_long_ends_a_look_at_dense_steps() -> None:
    run = Run(GravacPolicy(), Cluster(compute_seconds=0.5, network_seconds=2.0))
    held = run.until_hold().cf_candidate
    looked = run.until(lambda decision: decision.rule == "reexplore", most=100)
    assert looked.trial is not None
    assert looked.trial.cf == held
    back = run.windows(trial_seconds=30.0)
    assert (back.rule, back.phase, back.cf_candidate, back.trial) == ("hold", "hold", held, None)
    assert back.reason == f"A dense step took 30.0 s, too long to measure more of them: holding CF {held:g}."
    report = run.reports[-1]
    steps = report.last_step - report.first_step + 1
    assert row(back.candidates, 1.0).samples_per_second == pytest.approx(report.samples / steps / 30.0)
    assert run.state.spent > 0.0
    assert run.windows(60).phase == "hold", "the next look is twice as far away"


def test_gain_that_stays_low_in_hold_steps_down_to_dense_and_gain_that_returns_climbs_again() -> None:
    gains = {10.0: 0.9, 20.0: 0.8, 40.0: 0.05}
    run = Run(GravacPolicy(epsilon=0.1), Cluster(gains=gains))
    assert run.until_hold().cf_candidate == 20.0
    run.change(gains=dict.fromkeys(GAINS, 0.09))
    decisions = [run.windows() for _ in range(4)]
    assert [(decision.rule, decision.cf_candidate) for decision in decisions] == [
        ("hold", 20.0),
        ("scale_down", 10.0),
        ("hold", 10.0),
        ("scale_down", 1.0),
    ]
    assert decisions[0].reason == (
        "Holding CF 20, though its gain fell to 0.090, below ε 0.10: one such window may be an accident."
    )
    assert decisions[1].reason == (
        "The gain of CF 20 fell to 0.090, below ε 0.10: 2 windows in a row, down, to CF 10."
    )
    run.windows(30)  # at times it tries CF 10 again, in vain
    run.change(gains=gains)
    back = run.until(lambda decision: (decision.phase, decision.cf_candidate) == ("hold", 20.0), most=70)
    assert "its 301 useful samples/s are the best measured" in back.reason


def test_one_window_of_little_gain_changes_nothing() -> None:
    run = Run(GravacPolicy(epsilon=0.3), Cluster(gains=dict.fromkeys(GAINS, 0.6)))
    held = run.until_hold()
    run.windows(3)
    good = run.cluster
    for _ in range(5):
        run.change(gains=dict.fromkeys(GAINS, 0.29))
        assert (run.windows().rule, run.last.epoch) == ("hold", held.epoch)
        run.cluster = good
        assert (run.windows().rule, run.last.epoch) == ("hold", held.epoch)


def test_after_a_phase_of_little_gain_it_does_not_stay_dense() -> None:
    run = Run(GravacPolicy(epsilon=0.3, ladder=[10]), Cluster(gains={10.0: 0.6}))
    assert run.until_hold().cf_candidate == 10.0
    run.change(gains={10.0: 0.29})
    run.windows(2)
    run.change(gains={10.0: 0.6})
    assert run.last.cf_candidate == 1.0
    run.until(lambda decision: (decision.phase, decision.cf_candidate) == ("hold", 10.0), most=12)
    run.windows(500)
    assert sum(decision.cf_candidate == 10.0 for decision in run.decisions[-500:]) >= 495


def test_the_wait_between_tries_in_vain_doubles_to_sixteen_times() -> None:
    run = Run(GravacPolicy(epsilon=0.3, ladder=[10], retry_windows=2), Cluster(gains={10.0: 0.1}))
    run.windows(150)
    tried = [decision.window for decision in run.decisions if decision.rule == "climb"]
    ended = [decision.window for decision in run.decisions if decision.rule == "too_strong"]
    waits = [start - end for end, start in zip(ended, tried, strict=False)]
    assert waits[:6] == [3, 4, 8, 16, 32, 32]  # first, the reference and two windows in which it may win
    assert (
        "The last search ended 32 windows ago and a stronger CF may win: try CF 10."
        in run.decisions[tried[-1] + 1].reason
    )


def test_hold_tries_nothing_that_cannot_win() -> None:
    run = Run(GravacPolicy(epsilon=0.1), Cluster(network_seconds=0.05))
    assert run.until_hold().cf_candidate == 1.0
    run.change(network_seconds=0.004)  # 3.8 % of a step
    run.windows(200)
    assert run.rules[-200:].count("hold") == 200


def test_a_search_from_hold_compares_only_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gains rise tenfold: the figure of CF 20 from before, 5.4, must not count when CF 40 was tried again."""
    monkeypatch.setattr(hold, "DRIFT", 1000.0)
    low = {10.0: 0.04, 20.0: 0.03, 40.0: 0.02}
    run = Run(GravacPolicy(epsilon=0.01, ladder=[10, 20, 40]), Cluster(gains=low))
    assert run.until_hold().cf_candidate == 1.0
    run.change(gains={10.0: 0.4, 20.0: 0.39, 40.0: 0.38})
    found = run.until(lambda decision: decision.phase == "hold" and decision.cf_candidate > 1.0)
    assert (found.cf_candidate, found.rule) == (40.0, "top")
    assert [row(found.candidates, cf).verdict for cf in (1.0, 10.0, 20.0, 40.0)] == [
        "passed",
        "passed",
        "passed",
        "chosen",
    ]


def test_a_slower_link_is_measured_again_after_the_cooldown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "COOLDOWN_WINDOWS", 4)
    run = Run(GravacPolicy(epsilon=0.1), Cluster(network_seconds=0.001))
    run.until_hold()
    run.windows()  # the reference
    run.change(network_seconds=1.0)
    drifting = [run.windows().rule for _ in range(4)]
    assert drifting == ["hold", "hold", "hold", "reexplore"]
    assert (run.last.phase, run.last.cf_candidate) == ("warmup", 1.0)
    assert "58.2 samples/s, 91 % off the 634 it settled at, for 4 windows" in run.last.reason
    assert all(c.samples_per_second is None for c in run.last.candidates)
    assert run.until_hold().cf_candidate == 10.0


def test_one_bad_window_is_no_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "COOLDOWN_WINDOWS", 1)
    run = Run(GravacPolicy(epsilon=0.1), Cluster())
    run.until_hold()
    run.windows(3)
    slow = level_sums(run.last.epoch, 10.0, 50, 45, 9.0, 8.0)
    assert "but drifting" in run.windows(levels=(slow,)).reason
    assert run.windows().rule == "hold"
    assert run.windows(levels=(slow,)).rule == "hold"
    assert run.windows(levels=(slow,)).rule == "reexplore"


def test_gain_drift_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "COOLDOWN_WINDOWS", 1)
    monkeypatch.setattr(hold, "DRIFT", 0.3)
    run = Run(GravacPolicy(epsilon=0.1), Cluster())
    run.until_hold()
    run.windows(2)
    run.change(gains={**GAINS, 10.0: 0.3})
    assert run.windows(2).rule == "reexplore"
    assert "gain 0.30, 50 % off the 0.60 it settled at" in run.last.reason
