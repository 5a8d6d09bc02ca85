"""Which network a recording's steps had: as emulated, as measured, or shared."""

import pytest
import torch

from gravac import compressors
from gravac.collectives import ALONE, AUTO, CollectiveChooser, Network, Workload
from gravac.predict.recording import Recording
from gravac.predict.samples import measured_network, network_of, tells_network
from gravac.protocol import Event, LinkSpec, PlanCost
from tests.support.predicted import recording


def test_an_emulated_link_is_the_network() -> None:
    """Its rate is without the headers that a real link carries."""
    link = LinkSpec(bits_per_second=1e8, latency_seconds=0.0)
    held = Recording(recording().spec.model_copy(update={"link": link}))
    known = network_of(held)
    assert known is not None
    assert known.bytes_per_second * 0.956 == pytest.approx(12.5e6)
    assert network_of(recording()) is None


def test_where_all_steps_were_dense_the_network_is_the_one_measured_at_the_start() -> None:
    """The seconds of the policy's plans follow from it."""
    measured = Network(latency_seconds=2.5e-4, bytes_per_second=1.25e7)
    sent = ((1.0, 10.0, 4e6), (4.0, 3.0, 1e6), (100.0, 3.0, 4e4))
    plans = tuple(
        PlanCost(
            codec=None,
            cf=cf,
            payload_bytes=1,
            link_bytes=link_bytes,
            messages=messages,
            seconds=float(f"{measured.seconds(round(messages), link_bytes):.4g}"),
        )
        for cf, messages, link_bytes in sent
    )
    held = recording(cfs=(1.0,))
    assert network_of(held) is None
    assert not tells_network(held)
    held.spec = held.spec.model_copy(update={"plans": plans})
    known = network_of(held)
    assert known is not None
    assert known.latency_seconds == pytest.approx(2.5e-4, rel=1e-2)
    assert known.bytes_per_second * 0.956 == pytest.approx(1.25e7, rel=1e-3)
    held.spec = held.spec.model_copy(update={"plans": plans[:1]})
    assert network_of(held) is None, "one plan does not tell latency from bandwidth"
    for odd in (5e-324, 1e-300, 1e9):
        strange = tuple(each.model_copy(update={"seconds": odd}) for each in plans)
        held.spec = held.spec.model_copy(update={"plans": strange})
        assert network_of(held) is None, odd
    several = recording(cfs=(1.0, 10.0))
    several.spec = several.spec.model_copy(update={"plans": plans})
    assert network_of(several) is None, "steps with several amounts show what the network was while they ran"


def test_a_network_that_the_agent_measured_is_the_network() -> None:
    """The note on the choice of collectives names it."""
    load = Workload(compressors.build("topk"), 1_000_000, 100.0, torch.float32, 8)
    ways = CollectiveChooser(ALONE, AUTO, Network(latency_seconds=2.5e-4, bytes_per_second=1.25e7))
    ways.choose(load)
    (note,) = ways.notes()
    held = recording()
    held.add_event(Event(kind="note", window=0, message="Collectives are fine."))
    assert measured_network(held) is None
    held.add_event(Event(kind="note", window=0, message=note))
    known = measured_network(held)
    assert known is not None
    assert known.latency_seconds == pytest.approx(2.5e-4)
    assert known.bytes_per_second * 0.956 == pytest.approx(1.25e7)
    assert known.ranks_per_link == 1
