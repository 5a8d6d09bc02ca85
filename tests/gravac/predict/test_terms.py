"""Terms that samples do not determine are assumed and named; a slow link is no slow core."""

from dataclasses import replace

import pytest

from gravac.collectives import Network
from gravac.predict.exchange import volume
from gravac.predict.fit import fit
from tests.gravac.predict.test_fit import FAST, true_seconds
from tests.support.predicted import ELEMENTS, NETWORK, RANKS, TRUTH, recording

SLOW = Network(latency_seconds=1e-3, bytes_per_second=6e6)


def test_a_network_too_fast_to_show_is_not_made_up() -> None:
    """Steps of equal duration at every CF do not determine a bandwidth."""
    fast = Network(latency_seconds=0.0, bytes_per_second=1e12)
    found = fit([(recording(noise=0.05, network=fast), None)])
    assert 1e9 < found.network.bytes_per_second < 1e10
    assert any("hardly depend on the bytes" in line for line in found.unknown)


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
