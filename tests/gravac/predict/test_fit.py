"""A fit finds the terms of the model that the windows were made from, or says that it cannot."""

from dataclasses import replace

import pytest
import torch

from gravac import compressors
from gravac.collectives import ALONE, AUTO, CollectiveChooser, Network, Workload
from gravac.predict import Predictor, Scenario
from gravac.predict.exchange import volume
from gravac.predict.fit import fit
from gravac.predict.recording import Recording
from gravac.predict.samples import network_of
from gravac.protocol import Event, LinkSpec, PlanCost
from tests.support.predicted import CFS, ELEMENTS, NETWORK, RANKS, TRUTH, recording

FAST = Network(latency_seconds=2e-5, bytes_per_second=125e6)
SLOW = Network(latency_seconds=1e-3, bytes_per_second=6e6)


def true_seconds(cf: float, network: Network, ranks: int = RANKS) -> float:
    return TRUTH.step(cf, volume("topk", ELEMENTS, cf, ranks, network), network).seconds


@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.02), (0.05, 0.12)])
def test_the_terms_come_back(noise: float, within: float) -> None:
    """Each term that makes up a good part of some step."""
    found = fit([(recording(noise=noise, each=20), NETWORK)])
    model = found.model
    for name in (
        "compute_seconds",
        "compress_seconds",
        "compress_seconds_per_coded",
        "decompress_seconds_per_coded",
    ):
        assert getattr(model, name) == pytest.approx(getattr(TRUTH, name), rel=within), name
    assert model.compute_seconds + model.waiting_seconds == pytest.approx(0.125, rel=within)
    assert found.unknown == ()
    assert found.spread == pytest.approx(noise, abs=0.02)
    for cf in CFS:
        step = model.step(cf, volume("topk", ELEMENTS, cf, RANKS, NETWORK), NETWORK)
        assert step.seconds == pytest.approx(true_seconds(cf, NETWORK), rel=0.01 + noise), cf


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


def test_a_network_too_fast_to_show_is_not_made_up() -> None:
    """Steps of equal duration at every CF do not determine a bandwidth."""
    fast = Network(latency_seconds=0.0, bytes_per_second=1e12)
    found = fit([(recording(noise=0.05, network=fast), None)])
    assert 1e9 < found.network.bytes_per_second < 1e10
    assert any("hardly depend on the bytes" in line for line in found.unknown)


def test_an_emulated_link_is_the_network() -> None:
    """Its rate is without the headers that a real link carries."""
    link = LinkSpec(bits_per_second=1e8, latency_seconds=0.0)
    held = Recording(recording().spec.model_copy(update={"link": link}))
    known = network_of(held)
    assert known is not None
    assert known.bytes_per_second * 0.956 == pytest.approx(12.5e6)
    assert network_of(recording()) is None


def test_a_network_that_the_agent_measured_is_the_network() -> None:
    """The note on the choice of collectives names it."""
    load = Workload(compressors.build("topk"), 1_000_000, 100.0, torch.float32, 8)
    ways = CollectiveChooser(ALONE, AUTO, Network(latency_seconds=2.5e-4, bytes_per_second=1.25e7))
    ways.choose(load)
    (note,) = ways.notes()
    held = recording()
    held.add_event(Event(kind="note", window=0, message="Collectives are fine."))
    assert network_of(held) is None
    held.add_event(Event(kind="note", window=0, message=note))
    known = network_of(held)
    assert known is not None
    assert known.latency_seconds == pytest.approx(2.5e-4)
    assert known.bytes_per_second * 0.956 == pytest.approx(1.25e7)
    assert known.ranks_per_link == 1


def test_ranks_that_share_a_link_do_so_in_predictions() -> None:
    """A gather is a ring, in which one of them sends at a time; an all-to-all is not."""
    load = Workload(compressors.build("topk"), 1_000_000, 100.0, torch.float32, 8)
    shared = Network(latency_seconds=2.5e-4, bytes_per_second=1.25e7, ranks_per_link=4)
    ways = CollectiveChooser(ALONE, AUTO, shared)
    ways.choose(load)
    held = recording()
    held.add_event(Event(kind="note", window=0, message=ways.notes()[0]))
    found = network_of(held)
    assert found is not None
    assert found.ranks_per_link == 4
    assert found.bytes_per_second * 0.956 == pytest.approx(1.25e7)


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


@pytest.mark.parametrize(
    ("cfs", "unknown"),
    [
        ((1.0,), {"encoding", "transfer", "overlap"}),
        ((100.0,), {"encoding by CF", "transfer", "overlap"}),
        ((1.0, 100.0), {"encoding by CF", "overlap"}),
        ((1.0, 10.0, 100.0), set()),
    ],
)
def test_too_little_is_said_and_the_seen_steps_are_right(cfs: tuple[float, ...], unknown: set[str]) -> None:
    found = fit([(recording(cfs=cfs), NETWORK)])
    assert {line.partition(":")[0] for line in found.unknown} == unknown
    for cf in cfs:
        step = found.model.step(cf, volume("topk", ELEMENTS, cf, RANKS, NETWORK), NETWORK)
        assert step.seconds == pytest.approx(true_seconds(cf, NETWORK), rel=0.08), cf


def test_two_networks_make_one_model() -> None:
    """They separate the work of a byte from the time on the wire."""
    fast = recording(network=FAST)
    found = fit([(recording(), NETWORK), (fast, FAST)])
    assert found.model.handling_seconds_per_byte == pytest.approx(8e-10, rel=0.3)
    for network in (NETWORK, FAST):
        step = found.model.step(1.0, volume("topk", ELEMENTS, 1.0, RANKS, network), network)
        assert step.seconds == pytest.approx(true_seconds(1.0, network), rel=0.03)


def test_traces_of_different_jobs_make_none() -> None:
    other = Recording(recording().spec.model_copy(update={"compressor": "dgc"}))
    with pytest.raises(ValueError, match="traces of one job"):
        fit([(recording(), NETWORK), (other, NETWORK)])
    with pytest.raises(ValueError, match="on which network"):
        fit([(recording(), NETWORK), (recording(), None)])


def test_a_link_slower_than_its_rate_is_so_at_other_rates() -> None:
    """Time beyond the rate of a slow link belongs to the link, not to a core that a fast link would need as well."""
    lossy = replace(TRUTH, goodput_ratio=0.956 / 1.15)
    found = fit([(recording(truth=lossy, each=20), NETWORK)])
    assert found.model.goodput_ratio == pytest.approx(lossy.goodput_ratio, rel=0.03)
    for network in (FAST, SLOW):
        predicted = volume("topk", ELEMENTS, 1.0, RANKS, network)
        true = lossy.step(1.0, predicted, network).seconds
        assert found.model.step(1.0, predicted, network).seconds == pytest.approx(true, rel=0.03)
        assert TRUTH.step(1.0, predicted, network).seconds < 0.95 * true


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
