"""Steps on other networks, with more ranks and other payloads, are predicted from a fit."""

from dataclasses import replace

import pytest

from gravac.collectives import Network
from gravac.predict import Predictor, Scenario
from gravac.predict.fit import fit
from gravac.protocol import PlanCost
from tests.gravac.predict.test_fit import true_seconds
from tests.support.predicted import NETWORK, RANKS, recording

FAST = Network(latency_seconds=2e-5, bytes_per_second=125e6)
SLOW = Network(latency_seconds=1e-3, bytes_per_second=6e6)


@pytest.mark.parametrize("network", [FAST, SLOW], ids=["fast", "slow"])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_other_networks_and_cfs_are_predicted(network: Network, noise: float) -> None:
    """Within the prediction interval."""
    predictor = Predictor([(recording(noise=noise, each=20), NETWORK)])
    scenario = Scenario(network=network, ranks=RANKS, compressor="topk")
    for cf in (1.0, 5.0, 20.0, 300.0):
        predicted, true = predictor.predict(scenario, cf), true_seconds(cf, network)
        assert predicted.step.seconds == pytest.approx(true, rel=0.03 + noise), cf
        assert predicted.low <= true <= predicted.high, cf


def test_more_ranks_are_predicted() -> None:
    predictor = Predictor([(recording(), NETWORK)])
    for ranks in (2, 16):
        predicted = predictor.predict(Scenario(network=NETWORK, ranks=ranks, compressor="topk"), 100.0)
        assert predicted.step.seconds == pytest.approx(true_seconds(100.0, NETWORK, ranks), rel=0.02)
        assert predicted.samples_per_second == pytest.approx(8 * ranks / predicted.step.seconds)


def test_a_network_that_is_not_known_is_fitted_and_said() -> None:
    found = fit([(recording(), None)])
    assert found.network.bytes_per_second == pytest.approx(NETWORK.bytes_per_second, rel=0.05)
    assert any(line.startswith("network:") for line in found.unknown)
    predictor = Predictor([(recording(), None)])
    predicted = predictor.predict(Scenario(network=SLOW, ranks=RANKS, compressor="topk"), 1.0)
    assert predicted.step.seconds == pytest.approx(true_seconds(1.0, SLOW), rel=0.05)


def test_ranks_that_share_a_link_do_so_in_predictions() -> None:
    """A gather is a ring, in which one of them sends at a time; an all-to-all is not."""
    for cfs in ((10.0,), (1.0, 10.0)):
        held = recording(cfs=cfs, measured=replace(NETWORK, ranks_per_link=4))
        assert Predictor([(held, None)]).fit.network.ranks_per_link == 4


@pytest.mark.parametrize("off", [0.5, 0.67, 1.5, 2.0])
def test_steps_of_several_amounts_count_more_than_the_network_of_the_start(off: float) -> None:
    """Of which the latency counts."""
    network = replace(NETWORK, latency_seconds=5e-3)
    wrong = replace(network, bytes_per_second=off * network.bytes_per_second)
    predictor = Predictor([(recording(network=network, noise=0.03, each=10, measured=wrong), None)])
    assert predictor.fit.network.latency_seconds == 5e-3
    assert any("as measured at the start" in line for line in predictor.fit.unknown)
    for place, where in ((predictor.fit.network, network), (SLOW, SLOW)):
        for cf in (1.0, 5.0, 50.0):
            found = predictor.predict(Scenario(network=place, ranks=RANKS, compressor="topk"), cf)
            assert found.step.seconds == pytest.approx(true_seconds(cf, where), rel=0.06), cf


def test_several_recordings_have_the_networks_of_their_starts() -> None:
    """Only one could be fitted."""
    held = [recording(network=network, measured=network) for network in (NETWORK, SLOW)]
    assert Predictor([(one, None) for one in held]).fit.network == NETWORK


def test_payloads_are_as_large_as_they_were_seen() -> None:
    """A codec that sends 1.5 times what the cost model expects does so at other CFs, too."""
    held = recording()
    plain = Predictor([(held, NETWORK)]).predict(
        Scenario(network=NETWORK, ranks=RANKS, compressor="topk"), 50.0
    )
    for cf, some in held.by_cf.items():
        for place, seen in enumerate(some):
            some[place] = replace(seen, payload_bytes=(1.5 if cf > 1 else 1.0) * seen.payload_bytes)
    predictor = Predictor([(held, NETWORK)])
    predicted = predictor.predict(Scenario(network=NETWORK, ranks=RANKS, compressor="topk"), 50.0)
    assert predicted.volume.payload_bytes == pytest.approx(1.5 * plain.volume.payload_bytes, rel=1e-3)
    assert predicted.volume.link_bytes == pytest.approx(1.5 * plain.volume.link_bytes, rel=1e-3)
    other = predictor.predict(Scenario(network=NETWORK, ranks=RANKS, compressor="topk+bf16"), 50.0)
    assert other.volume.payload_bytes < plain.volume.payload_bytes


def test_hiccups_do_not_move_it() -> None:
    """A quarter of the windows took five times as long."""
    held = recording(each=8)
    for some in held.by_cf.values():
        for place in range(0, len(some), 4):
            seen = some[place]
            some[place] = replace(seen, seconds=5 * seen.seconds, exposed_seconds=3 * seen.exposed_seconds)
    predictor = Predictor([(held, NETWORK)])
    predicted = predictor.predict(Scenario(network=FAST, ranks=RANKS, compressor="topk"), 30.0)
    assert predicted.step.seconds == pytest.approx(true_seconds(30.0, FAST), rel=0.03)


def test_what_the_job_measured_of_a_codec_that_it_did_not_send_counts() -> None:
    """On a device the longer of its own time and the host's; where more payloads arrive, they take longer."""
    held = recording()
    cost = PlanCost(
        codec="nearest:levels=7",
        cf=10.1,
        payload_bytes=1,
        link_bytes=1.0,
        messages=1.0,
        coding_seconds=0.5,
        host_seconds=0.0,
    )
    place = Scenario(network=NETWORK, ranks=RANKS, compressor="nearest:levels=7")
    sent = Scenario(network=NETWORK, ranks=RANKS, compressor="topk")
    note = "encoding and decoding of codecs that were not sent: as topk's"
    for measured, whole in ((cost, 0.5), (cost.model_copy(update={"host_seconds": 0.75}), 0.75)):
        held.spec = held.spec.model_copy(update={"plans": (measured,)})
        predictor = Predictor([(held, NETWORK)])
        step = predictor.predict(place, 10.1).step
        assert step.compress + step.decompress == pytest.approx(whole)
        assert note not in predictor.unknowns([(place, (10.1,))])
        assert note in predictor.unknowns([(place, (10.1, 20.0))]), "of another strength it is unknown"
        fewer = measured.model_copy(update={"decoded": 1})  # than a rank decodes there
        held.spec = held.spec.model_copy(update={"plans": (fewer,)})
        more = Predictor([(held, NETWORK)]).predict(place, 10.1).step
        assert more.compress < step.compress + step.decompress < more.compress + more.decompress
        assert predictor.predict(sent, 10.0).step.compress < 0.1, "what was sent is fitted"
    held.spec = held.spec.model_copy(update={"plans": (cost.model_copy(update={"host_seconds": None}),)})
    stated = Predictor([(held, NETWORK)])
    assert stated.predict(place, 10.1).step.compress < 0.1, "stated by the codec, and not measured"
    assert note in stated.unknowns([(place, (10.1,))])
