"""A fit finds the terms of the model that the windows were made from, or says that it cannot."""

import pytest

from gravac.collectives import Network
from gravac.predict.exchange import volume
from gravac.predict.fit import fit
from gravac.predict.recording import Recording
from tests.support.predicted import CFS, ELEMENTS, NETWORK, RANKS, TRUTH, recording

FAST = Network(latency_seconds=2e-5, bytes_per_second=125e6)


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
