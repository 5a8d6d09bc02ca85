"""Simulated runs of a policy, and how long they take to deliver the samples."""

import pytest

from gravac.collectives import Network
from gravac.policies import parse
from gravac.whatif import Fleet, GainUnknown, Predictor, Scenario, SimulatedRun, best, simulate
from tests.support.whatif import CFS, NETWORK, RANKS, SAMPLES, STEPS, recording, true_gain

SLOW = Network(latency_seconds=1e-4, bytes_per_second=6e6)


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor([(recording(), NETWORK)])


def walked(predictor: Predictor, policy: str, samples: float, network: Network = NETWORK) -> SimulatedRun:
    scenario = Scenario(network=network, ranks=RANKS, compressor="topk")
    return simulate(predictor, scenario, parse(policy), samples, samples)


def test_a_static_policy_takes_steps_over_gain(predictor: Predictor) -> None:
    scenario = Scenario(network=NETWORK, ranks=RANKS, compressor="topk")
    step = predictor.predict(scenario, 100.0).step.seconds
    path = walked(predictor, "static:cf=100", 10_000.0)
    assert [each.cf for each in path.stretches] == [100.0]
    assert path.seconds_to_samples == pytest.approx(10_000 / SAMPLES * step)
    assert path.seconds_to_useful_samples == pytest.approx(
        10_000 / SAMPLES * step / true_gain(100.0), rel=1e-3
    )
    payload = predictor.predict(scenario, 100.0).volume.payload_bytes
    assert path.payload_bytes == pytest.approx(10_000 / SAMPLES / true_gain(100.0) * payload, rel=1e-3)


def test_the_warm_up_of_a_policy_counts(predictor: Predictor) -> None:
    path = walked(predictor, "static:cf=100,warmup_windows=3", 10_000.0)
    assert [(each.cf, each.windows) for each in path.stretches[:1]] == [(1.0, 3)]
    alone = walked(predictor, "static:cf=100", 10_000.0)
    assert path.seconds_to_samples > alone.seconds_to_samples


def test_what_goes_on_for_ever_is_not_played_window_by_window(predictor: Predictor) -> None:
    """Ten thousand times the samples take ten thousand times as long."""
    little, much = (walked(predictor, "dense", count).seconds_to_samples for count in (1e4, 1e8))
    assert much == pytest.approx(1e4 * little, rel=1e-6)


@pytest.mark.parametrize("network", [NETWORK, SLOW], ids=["as recorded", "slow"])
def test_gravac_settles_about_where_t_comp_is_highest(predictor: Predictor, network: Network) -> None:
    """The real policy on simulated reports finds the best CF of its ladder, within its own tolerance."""
    path = walked(predictor, "gravac:epsilon=0.05,ladder=10/30/100/1000", 1e5, network)
    scenario = Scenario(network=network, ranks=RANKS, compressor="topk")
    chosen = best([predictor.predict(scenario, cf) for cf in CFS], 0.05)
    assert chosen is not None
    settled = path.settled
    assert settled.decision.phase == "hold"
    assert settled.cf > 1.0
    useful = predictor.predict(scenario, settled.cf).useful_samples_per_second
    assert useful is not None
    assert useful >= 0.93 * (chosen.useful_samples_per_second or 0.0)


def test_the_gate_sends_what_keeps_epsilon(predictor: Predictor) -> None:
    path = walked(predictor, f"static:cf=100,epsilon={true_gain(100.0) + 0.01:.3f}", 10_000.0)
    assert {each.cf for each in path.stretches} == {1.0}


def test_a_gain_that_cannot_be_told_stops_it() -> None:
    blind = Predictor([(recording(curve=False), NETWORK)])
    with pytest.raises(GainUnknown, match="CF 5000"):
        walked(blind, "static:cf=5000", 10_000.0)


def test_best_heeds_epsilon_and_unknown_gains(predictor: Predictor) -> None:
    scenario = Scenario(network=SLOW, ranks=RANKS, compressor="topk")
    predictions = [predictor.predict(scenario, cf) for cf in (*CFS, 5000.0)]
    free, bound = best(predictions), best(predictions, true_gain(30.0))
    assert free is not None
    assert bound is not None
    assert free.cf == max(
        CFS, key=lambda cf: predictor.predict(scenario, cf).useful_samples_per_second or 0.0
    )
    assert bound.cf <= 30.0
    assert best([each for each in predictions if each.cf == 5000.0]) is None


def test_reports_of_a_fleet_are_what_ranks_would_say(predictor: Predictor) -> None:
    """Valid, repeatable, with a slow rank; whole steps take equally long on all ranks."""
    scenario = Scenario(network=NETWORK, ranks=64, compressor="topk")
    spec = predictor.recording.spec.model_copy(update={"world_size": 64})
    decision = parse("static:cf=100").start().decision
    reports = [Fleet(predictor, scenario, spec, rows=64, seed=3).report(0, decision) for _ in range(2)]
    assert reports[0] == reports[1]
    report = reports[0]
    assert [row.rank for row in report.ranks] == list(range(64))
    assert report.samples == 16 * SAMPLES * STEPS
    slowest = max(report.ranks, key=lambda row: row.phases.compute)
    assert slowest.rank == 63
    even = [row.step_seconds for row in report.ranks if row.phases.communicate > 0]
    assert len(even) > 60
    assert max(even) == pytest.approx(min(even))
    level = report.levels[0]
    assert level.sums.sent_sq / level.sums.compensated_sq == pytest.approx(true_gain(100.0))
