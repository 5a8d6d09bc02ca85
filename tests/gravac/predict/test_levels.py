"""Two levels of links: a step costs what ranks exchange inside a host and what they exchange between hosts."""

from dataclasses import replace

import pytest

from gravac.collectives import Network
from gravac.fold import JobFold
from gravac.predict import Fleet, Predictor, Scenario
from gravac.predict.recording import Recording
from gravac.predict.samples import measured_network, network_of
from tests.support.predicted import ELEMENTS, HOSTS, NETWORK, recording, true_step, true_volume

SLOW = Network(latency_seconds=1e-3, bytes_per_second=3e6)


def two_levels(**options: object) -> Recording:
    return recording(ranks=HOSTS.hosts, hosts=HOSTS, **options)


def test_the_network_is_that_between_hosts_as_measured_at_the_start() -> None:
    assert network_of(two_levels()) is None, "steps with several amounts tell the bandwidth"
    held = two_levels(cfs=(10.0,))
    found = network_of(held)
    assert found is not None
    assert found == measured_network(held)
    assert found.latency_seconds == HOSTS.between_latency_seconds
    assert found.bytes_per_second == pytest.approx(NETWORK.bytes_per_second)


@pytest.mark.parametrize("off", [0.5, 1.0, 2.0])
def test_plans_networks_and_hosts_that_were_not_tried_are_predicted(off: float) -> None:
    """Whatever was measured at the start: the steps tell what the link carried."""
    wrong = off * HOSTS.between_bytes_per_second
    hosts = HOSTS.model_copy(update={"between_bytes_per_second": wrong})
    held = two_levels(each=10)
    held.spec = held.spec.model_copy(update={"hosts": hosts})
    predictor = Predictor([(held, None)])
    for network, ranks, cf in (
        (NETWORK, 3, 1.0),
        (NETWORK, 3, 20.0),
        (SLOW, 3, 1.0),
        (SLOW, 3, 50.0),
        (NETWORK, 8, 300.0),
        (SLOW, 2, 10.0),
    ):
        place = Scenario(network=network, ranks=ranks * HOSTS.ranks, compressor="topk")
        found, expected = predictor.predict(place, cf), true_step(cf, network, ranks, hosts=HOSTS)
        assert found.step.seconds == pytest.approx(expected.seconds, rel=0.03), (network, ranks, cf)
        sent = true_volume(cf, network, ranks, HOSTS)
        assert found.volume.payload_bytes == pytest.approx(sent.payload_bytes, rel=0.01)
        assert found.volume.link_bytes == pytest.approx(sent.link_bytes, rel=0.01)


def test_the_link_inside_a_host_counts_where_it_is_the_slow_one() -> None:
    slow = HOSTS.model_copy(update={"inside_bytes_per_second": 1e7})
    held = recording(ranks=HOSTS.hosts, hosts=slow, cfs=(1.0, 10.0, 100.0))
    found = Predictor([(held, None)]).predict(
        Scenario(network=replace(NETWORK, bytes_per_second=1e12), ranks=12, compressor="topk"), 100.0
    )
    assert found.volume.inside_seconds == pytest.approx(6 * 5e-5 + 1.5 * 4 * ELEMENTS / 1e7)
    assert found.step.exposed > 0.8 * found.volume.inside_seconds


def test_ranks_that_fill_no_hosts_are_refused() -> None:
    predictor = Predictor([(two_levels(), None)])
    for ranks in (4, 6, 13):
        with pytest.raises(ValueError, match=f"ranks={ranks}: .* 4 ranks .*, from 8 on"):
            predictor.predict(Scenario(network=NETWORK, ranks=ranks, compressor="topk"), 10.0)


def test_reports_of_a_simulated_job_count_what_goes_between_hosts() -> None:
    """So a dense step sends as much as dense."""
    held = two_levels()
    predictor = Predictor([(held, None)])
    fold = JobFold(held.spec)
    report = Fleet(predictor, predictor.scenario(), held.spec).report(0, fold.decision)
    assert report.cf == 1.0
    assert (
        report.dense_bytes
        == report.payload_bytes
        == 12 * held.spec.window_steps * 4 * ELEMENTS // HOSTS.ranks
    )
