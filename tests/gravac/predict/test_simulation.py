"""Simulated runs of a policy, and how long they take to deliver the samples."""

from collections import deque
from collections.abc import Iterator

import pytest

from gravac.collectives import Network
from gravac.policies import parse
from gravac.predict import Fleet, GainUnknown, Predictor, Scenario, SimulatedRun, best, simulate
from gravac.signals.efficiency import Efficiency, expected
from tests.support.efficiencies import fixed_efficiencies
from tests.support.predicted import CFS, NETWORK, RANKS, SAMPLES, STEPS, recording, true_gain

SLOW = Network(latency_seconds=1e-4, bytes_per_second=6e6)


@pytest.fixture(autouse=True, scope="module")
def fixed_table() -> Iterator[None]:
    with fixed_efficiencies():
        yield


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor([(recording(), NETWORK)])


def walked(predictor: Predictor, policy: str, samples: float, network: Network = NETWORK) -> SimulatedRun:
    scenario = Scenario(network=network, ranks=RANKS, compressor="topk")
    return simulate(predictor, scenario, parse(policy), samples, samples)


def efficiency(cf: float) -> float:
    found = expected("topk", cf, "unknown")
    assert found is not None
    return found.likely


def test_a_static_policy_takes_steps_over_efficiency(predictor: Predictor) -> None:
    scenario = Scenario(network=NETWORK, ranks=RANKS, compressor="topk")
    step = predictor.predict(scenario, 100.0).step.seconds
    path = walked(predictor, "static:cf=100", 10_000.0)
    assert [stretch.cf for stretch in path.stretches] == [100.0]
    assert path.seconds_to_samples == pytest.approx(10_000 / SAMPLES * step)
    assert path.seconds_to_useful_samples == pytest.approx(
        10_000 / SAMPLES * step / efficiency(100.0), rel=1e-3
    )
    payload = predictor.predict(scenario, 100.0).volume.payload_bytes
    assert path.payload_bytes == pytest.approx(10_000 / SAMPLES / efficiency(100.0) * payload, rel=1e-3)


def test_the_warm_up_of_a_policy_counts(predictor: Predictor) -> None:
    path = walked(predictor, "static:cf=100,warmup_windows=3", 10_000.0)
    assert [(stretch.cf, stretch.windows) for stretch in path.stretches[:1]] == [(1.0, 3)]
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
    rates = {cf: predictor.predict(scenario, cf).compression_throughput or 0.0 for cf in CFS}
    settled = path.settled
    assert settled.decision.phase == "hold"
    assert settled.cf > 1.0
    assert rates[settled.cf] >= 0.93 * max(rates.values())


def test_the_gate_sends_what_keeps_epsilon(predictor: Predictor) -> None:
    path = walked(predictor, f"static:cf=100,epsilon={true_gain(100.0) + 0.01:.3f}", 10_000.0)
    assert {stretch.cf for stretch in path.stretches} == {1.0}


def test_a_gain_that_cannot_be_told_stops_it() -> None:
    blind = Predictor([(recording(curve=False), NETWORK)])
    with pytest.raises(GainUnknown, match="CF 5000"):
        walked(blind, "static:cf=5000,epsilon=0.1", 10_000.0)


def test_best_is_by_useful_throughput_over_codecs(predictor: Predictor) -> None:
    """Top-k at CF 30 is faster than seven levels, but not by as much as it learns less under Adam."""
    places = [
        Scenario(network=NETWORK, ranks=RANKS, compressor=codec) for codec in ("topk", "nearest:levels=7")
    ]
    strong, fine = predictor.predict(places[0], 30.0), predictor.predict(places[1], 10.1)
    assert strong.samples_per_second > fine.samples_per_second
    assert fine.useful_samples_per_second == pytest.approx(0.98 * fine.samples_per_second)
    assert best([strong, fine]) is fine


def test_best_leaves_out_what_is_not_known(predictor: Predictor) -> None:
    unseen = predictor.predict(Scenario(network=SLOW, ranks=RANKS, compressor="randomk"), 100.0)
    assert unseen.useful_samples_per_second is None
    assert best([unseen]) is None
    dense = predictor.predict(Scenario(network=SLOW, ranks=RANKS, compressor="randomk"), 1.0)
    assert best([unseen, dense]) is dense


def test_an_unknown_efficiency_leaves_the_time_to_useful_samples_open() -> None:
    """Error feedback of a codec that was neither simulated nor recorded at this CF."""
    held = recording()
    held.spec = held.spec.model_copy(update={"memory": "none"})
    held.efficiencies.clear()
    path = walked(Predictor([(held, NETWORK)]), "static:cf=100", 10_000.0)
    assert path.seconds_to_useful_samples is None
    assert path.seconds_to_samples > 0


def test_a_policy_that_chooses_codecs_walks_through_plans(predictor: Predictor) -> None:
    path = walked(predictor, "auto:plans=nearest:levels=7/topk+bf16@100", 1e5, SLOW)
    assert {(stretch.codec, stretch.cf) for stretch in path.stretches} >= {
        ("topk", 1.0),
        ("nearest:levels=7", 10.1),
    }


def test_what_a_recording_showed_of_a_codec_stands_in_for_simulations() -> None:
    held = recording()
    level_efficiency = Efficiency(0.8, 0.7, 0.9)
    held.efficiencies["randomk", 7.0] = deque([level_efficiency])
    found = Predictor([(held, NETWORK)])
    assert found.efficiency("randomk", 7.0, 4) == level_efficiency
    assert found.efficiency("randomk", 8.0, 4) is None


def test_reports_of_a_fleet_are_what_ranks_would_say(predictor: Predictor) -> None:
    """Valid and repeatable, with the gain that the trace shows."""
    scenario = Scenario(network=NETWORK, ranks=64, compressor="topk")
    spec = predictor.recording.spec.model_copy(update={"world_size": 64})
    decision = parse("static:cf=100").start().decision
    reports = [Fleet(predictor, scenario, spec).report(0, decision) for _ in range(2)]
    assert reports[0] == reports[1]
    report = reports[0]
    assert report.samples == 16 * SAMPLES * STEPS
    level = report.levels[0]
    assert level.sums.sent_sq / level.sums.compensated_sq == pytest.approx(true_gain(100.0))
