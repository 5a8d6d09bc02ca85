"""Policy roundrobin: every CF in turn."""

from gravac.policies import RoundRobinPolicy
from tools.harness.cluster import Cluster, Run


def test_roundrobin_measures_every_cf_in_turn() -> None:
    run = Run(RoundRobinPolicy(cfs=(1, 10, 40)), Cluster())
    run.windows(7)
    assert [decision.cf_candidate for decision in run.decisions] == [1, 10, 40, 1, 10, 40, 1, 10]
    assert [decision.epoch for decision in run.decisions] == list(range(8))
    assert run.decisions[2].reason == "CF 10: 291 samples/s at gain 0.60, 175 useful. Next in turn: CF 40."
    assert [(row.cf, row.gain, row.window) for row in run.last.candidates] == [
        (1.0, 1.0, 6),
        (10.0, 0.60, 4),
        (40.0, 0.33, 5),
    ]


def test_roundrobin_measures_a_cf_again_if_it_had_too_few_steps() -> None:
    run = Run(RoundRobinPolicy(cfs=(10, 40)), Cluster(window_steps=6))
    assert (run.windows().rule, run.last.cf_candidate) == ("extend", 10.0)
    assert run.windows(phase="fallback").rule == "unusable"
    run.change(window_steps=50)
    assert (run.windows().rule, run.last.cf_candidate) == ("fixed", 40.0)
