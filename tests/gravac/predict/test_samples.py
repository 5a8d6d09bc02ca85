"""Which network a recording's steps had: as emulated, as measured, or shared."""

from dataclasses import replace

import pytest

from gravac.collectives import Network
from gravac.predict.recording import Recording
from gravac.predict.samples import measured_network, network_of, tells_network
from gravac.protocol import LinkSpec
from tests.support.predicted import recording


def test_an_emulated_link_is_the_network() -> None:
    """Its rate is without the headers that a real link carries."""
    link = LinkSpec(bits_per_second=1e8, latency_seconds=0.0)
    held = Recording(recording().spec.model_copy(update={"link": link}))
    known = network_of(held)
    assert known is not None
    assert known.bytes_per_second * 0.956 == pytest.approx(12.5e6)
    assert network_of(recording()) is None


def test_where_all_steps_sent_the_same_the_network_is_the_one_measured_at_the_start() -> None:
    held = recording(cfs=(1.0,))
    assert network_of(held) is None
    assert not tells_network(held)
    start = Network(latency_seconds=2.5e-4, bytes_per_second=1.25e7, ranks_per_link=4)
    for cfs in ((1.0,), (1.0, 10.0)):
        held = recording(cfs=cfs, measured=start)
        known = measured_network(held)
        assert known is not None
        assert known.bytes_per_second == pytest.approx(start.bytes_per_second)
        assert known == replace(start, bytes_per_second=known.bytes_per_second)
        assert network_of(held) == (known if len(cfs) == 1 else None), "several amounts tell the bandwidth"
        assert tells_network(held)
