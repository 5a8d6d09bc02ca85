"""What holds for every search of policy gravac, whatever is measured."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.policies import GravacPolicy
from gravac.policies.paper.hold import COOLDOWN_WINDOWS
from gravac.protocol import Decision, GainCurve
from tests.gravac.policies.test_base import reports
from tools.harness.cluster import Cluster, Run

LINES: dict[str, dict[str, object]] = {
    "defaults": {"epsilon": 0.1},
    "geometric": {"epsilon": 0.1, "ladder": "geometric", "retry_windows": 1},
    "raw gain": {"epsilon": 0.1, "denominator": "gradient"},
}
lines = pytest.mark.parametrize("given_settings", LINES.values(), ids=LINES)


def begins_search(before: Decision, after: Decision) -> bool:
    return after.phase == "explore" and before.phase != "explore"


@lines
@settings(max_examples=25)
@given(data=st.data())
def test_a_search_tries_no_rung_twice_and_only_climbs(
    given_settings: dict[str, object], data: st.DataObject
) -> None:
    run = Run(GravacPolicy(**given_settings), Cluster())
    for window in range(data.draw(st.integers(5, 25))):
        run.feed(data.draw(reports(window, run.last)))
    tried: list[float] = []
    for before, after in pairwise(run.decisions):
        if after.phase != "explore":
            continue
        if begins_search(before, after):
            tried = [after.cf_candidate]
        elif after.cf_candidate != before.cf_candidate:
            assert after.cf_candidate > tried[-1]
            tried.append(after.cf_candidate)
        assert len(tried) <= len(run.policy.ladder()) - 1


GOOD = dict.fromkeys((10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1000.0), 0.9)


@lines
@settings(max_examples=25)
@given(data=st.data())
def test_no_single_window_makes_it_leave_what_it_holds(
    given_settings: dict[str, object], data: st.DataObject
) -> None:
    """Good windows, then any one, then good ones: what is decided after the odd one is to hold as before."""
    cluster = Cluster(gains={cf: gain * data.draw(st.floats(0.5, 1.0)) for cf, gain in GOOD.items()})
    run = Run(GravacPolicy(**given_settings), cluster)
    usual = data.draw(st.sampled_from([None, 0.05, 0.5, 0.9]))
    for _ in range(data.draw(st.integers(10, 30))):
        run.windows(curve=curve_of(usual))
    while not (run.last.phase == "hold" and run.decisions[-2].phase == "hold" and steady(run, usual)):
        run.windows(curve=curve_of(usual))
    held = run.last
    unusual = curve_of(data.draw(st.sampled_from([None, 0.05, 0.5, 0.9, 1.0])))
    report = data.draw(reports(len(run.decisions) - 1, held))
    odd = run.feed(report.model_copy(update={"curve": unusual}))
    assert (odd.phase, odd.cf_minimum, odd.cf_candidate) == ("hold", held.cf_minimum, held.cf_candidate)


def curve_of(gain: float | None) -> GainCurve | None:
    """A curve that promises every CF this gain."""
    return None if gain is None else GainCurve(steps=3, own=True, gains=(gain,) * 61)


def steady(run: Run, usual: float | None) -> bool:
    """Whether good windows would be held, with the usual curve and without: else it is due to climb, whatever comes."""
    usually = [
        run.cluster.report(len(run.decisions) - 1, run.last, curve=curve_of(gain)) for gain in (usual, None)
    ]
    return all(run.policy.decide(run.state, report).decision.phase == "hold" for report in usually)


@lines
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_good_gains_lead_to_the_best_rung_from_any_state(
    given_settings: dict[str, object], data: st.DataObject
) -> None:
    """Within the longest wait between two tries, 16 * retry_windows, and a search from dense up."""
    shares = sorted(data.draw(st.lists(st.floats(0.6, 1.0), min_size=8, max_size=8)), reverse=True)
    cluster = Cluster(gains=dict(zip(GOOD, shares, strict=True)))
    policy = GravacPolicy(**given_settings)
    run = Run(policy, cluster)
    for window in range(data.draw(st.integers(0, 15))):
        run.feed(data.draw(reports(window, run.last)))
    best = max(map(cluster.t_comp, policy.ladder()))
    most = 16 * policy.settings.retry_windows + 3 * len(policy.ladder()) + 2 * COOLDOWN_WINDOWS
    run.until(
        lambda decision: decision.phase == "hold" and cluster.t_comp(decision.cf_candidate) * 1.05 >= best,
        most=most,
    )
