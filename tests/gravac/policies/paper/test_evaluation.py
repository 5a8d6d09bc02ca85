"""Policy gravac and the curve of gain: what it rules out is not tried."""

from itertools import pairwise

import pytest

from gravac.policies import GravacPolicy
from gravac.policies.candidates import row
from gravac.protocol import GainCurve
from tools.harness.cluster import Cluster, Run


def curve(own: bool = True, **gains: float) -> GainCurve:
    """Gains at CF 1, 10, 20, … by name (``cf10``); in between, as at the next weaker one named."""
    named = {1.0: 1.0} | {float(cf[2:]): gain for cf, gain in gains.items()}
    nearest = [max(cf for cf in named if cf <= 10 ** (step / 20) * 1.0001) for step in range(61)]
    return GainCurve(steps=3, own=own, gains=tuple(named[cf] for cf in nearest))


def test_no_window_is_spent_on_a_cf_that_the_curve_rules_out() -> None:
    run = Run(GravacPolicy(epsilon=0.4), Cluster(network_seconds=20.0))
    run.until(lambda decision: decision.cf_candidate == 20.0)
    decision = run.windows(curve=curve(cf10=0.6, cf20=0.45, cf35=0.3))
    assert (decision.rule, decision.phase, decision.cf_candidate) == ("too_strong", "hold", 20.0)
    assert (
        "CF 40 would keep at most 0.30, below ε 0.40, by the curve of this window: not tried."
        in decision.reason
    )
    tried = row(decision.candidates, 40.0)
    assert (tried.verdict, tried.gain, tried.window) == ("too_strong", 0.3, None)


def test_nothing_is_tried_when_the_first_rung_is_ruled_out() -> None:
    run = Run(GravacPolicy(epsilon=0.7), Cluster())
    run.windows(curve=curve(cf9=0.5))
    decision = run.windows(curve=curve(cf9=0.5))
    assert (decision.rule, decision.phase, decision.cf_candidate) == ("too_strong", "hold", 1.0)
    assert "CF 10 would keep at most 0.50" in decision.reason
    assert decision.reason.endswith("Staying dense: no CF passed.")


@pytest.mark.parametrize(
    "seen",
    [
        None,  # no step was surveyed
        curve(own=False, cf10=0.1),  # the curve of Top-k says nothing of another codec
        curve(cf10=0.6, cf35=0.39),  # below ε, but not clearly
        GainCurve(steps=3, own=True, gains=(None,) * 61),  # nothing was there to send
    ],
)
def test_the_curve_rules_out_only_what_is_clear(seen: GainCurve | None) -> None:
    run = Run(GravacPolicy(epsilon=0.4), Cluster(network_seconds=20.0))
    run.until(lambda decision: decision.cf_candidate == 20.0)
    assert run.windows(curve=seen).cf_candidate == 40.0


def test_a_phase_in_which_nothing_compresses_then_one_in_which_much_does() -> None:
    """With a curve it climbs in two windows, however long the first phase was."""
    nothing, much = curve(cf9=0.1, cf35=0.02), curve(cf10=0.9, cf20=0.85, cf40=0.8)
    cluster = Cluster(gains={10.0: 0.9, 20.0: 0.85, 40.0: 0.8})
    run = Run(GravacPolicy(epsilon=0.3), cluster)
    run.windows(300, curve=nothing)
    assert {decision.cf_candidate for decision in run.decisions} == {1.0}
    assert run.windows(curve=much).rule == "hold"
    decision = run.windows(curve=much)
    assert (decision.rule, decision.phase, decision.cf_candidate) == ("climb", "explore", 10.0)
    assert decision.reason == (
        "Holding dense: 58.2 samples/s. The curve promises CF 10 a gain of 0.90 (≥ ε 0.30), enough to win: try CF 10."
    )
    run.windows(3, curve=much)
    assert (run.last.phase, run.last.cf_candidate) == ("explore", 160.0)


def test_one_window_whose_curve_promises_much_changes_nothing() -> None:
    nothing, much = curve(cf9=0.1), curve(cf10=0.9)
    run = Run(GravacPolicy(epsilon=0.3), Cluster())
    run.windows(10, curve=nothing)
    for _ in range(5):
        assert run.windows(curve=much).rule == "hold"
        assert run.windows(curve=nothing).rule == "hold"


def test_a_curve_that_promised_too_much_is_believed_again_when_it_promises_more() -> None:
    run = Run(GravacPolicy(epsilon=0.3, ladder=[10]), Cluster(gains={10.0: 0.2}))
    run.windows(200, curve=curve(cf10=0.4))
    tries = [decision.window for decision in run.decisions if decision.rule == "climb"]
    assert [later - earlier for earlier, later in pairwise(tries)] == [9, 17, 33, 65, 65]
    while run.last.phase != "hold":
        run.windows(curve=curve(cf10=0.4))
    run.change(gains={10.0: 0.5})
    run.windows(2, curve=curve(cf10=0.7))
    assert (run.last.rule, run.last.cf_candidate) == ("climb", 10.0)


def test_steps_down_past_what_the_curve_rules_out() -> None:
    gains = {10.0: 0.9, 20.0: 0.85, 40.0: 0.8}
    run = Run(GravacPolicy(epsilon=0.4, ladder=[10, 20, 40]), Cluster(gains=gains))
    assert run.until_hold().cf_candidate == 40.0
    run.change(gains={10.0: 0.6, 20.0: 0.3, 40.0: 0.2})
    run.windows(2, curve=curve(cf10=0.6, cf18=0.3))
    assert (run.last.rule, run.last.cf_candidate) == ("scale_down", 10.0)


def test_the_first_rung_that_can_win_is_tried() -> None:
    """Held at CF 10, CF 20 promises too little to beat it and CF 40 enough: it is tried at once."""
    run = Run(
        GravacPolicy(epsilon=0.1, ladder=[10, 20, 40]),
        Cluster(gains={10.0: 0.6, 20.0: 0.3}, network_seconds=1.0),
    )
    flat = curve(cf10=0.6, cf18=0.05)
    assert run.until(lambda decision: decision.phase == "hold").cf_candidate == 10.0
    run.windows(30, curve=flat)
    assert {decision.cf_candidate for decision in run.decisions[-20:]} == {10.0}
    # No codec has such a curve; it shows that each rung is judged by itself.
    odd = GainCurve(
        steps=3, own=True, gains=tuple(0.6 if cf <= 10 or cf >= 39 else 0.05 for cf in map(_cf, range(61)))
    )
    run.windows(2, curve=odd)
    assert (run.last.rule, run.last.cf_minimum, run.last.cf_candidate) == ("climb", 10.0, 40.0)


def _cf(step: int) -> float:
    return 10 ** (step / 20) * 1.0001


def test_the_curve_is_not_used_for_the_gain_over_the_raw_gradient() -> None:
    run = Run(GravacPolicy(epsilon=0.4, denominator="gradient"), Cluster(network_seconds=20.0))
    run.until(lambda decision: decision.cf_candidate == 20.0)
    assert run.windows(curve=curve(cf10=0.6, cf20=0.45, cf35=0.3)).cf_candidate == 40.0
