"""Policy gravac and the curve of gain: what it rules out is not tried."""

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
