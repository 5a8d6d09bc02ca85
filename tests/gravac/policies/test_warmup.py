"""Policy warmup: it climbs DGC's ramp and holds."""

from gravac.policies import WarmupPolicy
from tools.harness.cluster import Cluster, Run


def test_warmup_climbs_dgcs_ramp_and_holds() -> None:
    run = Run(WarmupPolicy(windows=2), Cluster())
    run.windows(10)
    assert [(d.phase, d.cf_minimum, d.cf_candidate, d.epoch) for d in run.decisions] == [
        *[("explore", 4.0, 4.0, 0)] * 2,
        *[("explore", 16.0, 16.0, 1)] * 2,
        *[("explore", 64.0, 64.0, 2)] * 2,
        *[("explore", 250.0, 250.0, 3)] * 2,
        *[("hold", 1000.0, 1000.0, 4)] * 3,
    ]
    assert [decision.reason for decision in run.decisions[:2]] == [
        "The warmup policy sends CF 4 for 2 windows, then CF 16, and so on up to CF 1000.",
        "The ramp stays at CF 4 for 1 window more, which keeps 0.25 of the gradient.",
    ]
    assert (
        run.decisions[6].reason
        == "The warmup policy sends CF 250 for 2 windows, then CF 1000, and holds that."
    )
    assert run.decisions[8].reason == "From here on the warmup policy holds CF 1000."
    assert run.last.reason == "The warmup policy holds CF 1000, which keeps 0.080 of the gradient."
    assert set(run.rules) == {"start", "fixed"}


def test_warmup_after_a_baseline_to_a_milder_cf_not_counting_fallback() -> None:
    run = Run(WarmupPolicy(cf=40, windows=1, dense_windows=2), Cluster())
    assert run.windows(phase="fallback").rule == "unusable"
    assert run.last.cf_candidate == 1.0
    run.windows(4)
    assert [(d.phase, d.cf_candidate) for d in run.decisions[1:]] == [
        *[("warmup", 1.0)] * 2,
        ("explore", 4.0),
        ("explore", 16.0),
        ("hold", 40.0),
    ]
    assert (
        run.decisions[0].reason
        == "The warmup policy is dense for 2 windows, then CF 4, and so on up to CF 40."
    )
    assert run.decisions[2].reason == "The dense baseline goes on for 1 window more."


def test_warmup_to_less_than_its_ramp_holds_at_once() -> None:
    run = Run(WarmupPolicy(cf=2), Cluster())
    assert (run.windows().cf_candidate, run.last.phase, run.last.epoch) == (2.0, "hold", 0)
