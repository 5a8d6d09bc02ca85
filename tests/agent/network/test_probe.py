"""What the probe finds out about a network that is known, by a clock that only transfers move."""

from itertools import cycle

import pytest

from gravac.collectives import ALONE, Network, cost
from gravac_agent.network import probe

BURST_SPEED = 1.25e9


class Paced:
    """A ring of ``size`` ranks that all do as this one does, with a clock that only messages move.

    ``burst``: bytes that each link lets through at ``BURST_SPEED`` first; it is not refilled. ``busy``: seconds that
    each transfer takes longer, in turn. ``wait``: seconds in which rings wait for each other.
    """

    def __init__(
        self,
        size: int,
        network: Network,
        burst: float = 0.0,
        busy: tuple[float, ...] = (0.0,),
        wait: float = 0.0,
    ) -> None:
        self.hops, self.network = cost.depth(size), network
        self.now, self.sent_bytes, self.tokens, self.busy = 0.0, 0, burst, cycle(busy)
        self.wait = wait

    def seconds(self, nbytes: int) -> probe.Seconds:
        every = self.hops * nbytes
        fast = min(self.tokens, every)
        self.tokens -= fast
        took = self.network.seconds(self.hops, every - fast) + fast / BURST_SPEED + next(self.busy)
        self.now += took + self.network.latency_seconds + self.wait  # of agreeing on the time
        self.sent_bytes += every
        return probe.Seconds(took, took + self.wait)


@pytest.mark.parametrize("size", [3, 8, 64])
@pytest.mark.parametrize(
    ("latency", "speed", "seconds"),
    [
        (5e-5, 1.25e10, 0.2),
        (1e-4, 1.25e8, 0.3),
        (1e-3, 1.25e7, 1.0),
        (2e-2, 1.25e7, 15.0),  # the other side of the world: a ring of 64 takes 1.3 s by itself
        (1e-3, 1.25e5, 1.0),  # 1 Mbit/s
    ],
)
def test_a_network_that_is_known(size: int, latency: float, speed: float, seconds: float) -> None:
    paced = Paced(size, Network(latency_seconds=latency, bytes_per_second=speed))
    found = probe.measure(paced)
    assert found.latency_seconds == pytest.approx(latency, rel=0.3)
    if speed > 1e10:  # 8 MB take no time on it: all that is known is that it is fast
        assert found.bytes_per_second > 1e9
    else:
        assert found.bytes_per_second == pytest.approx(speed, rel=0.3)
    assert paced.now < seconds
    assert paced.sent_bytes * 8 < 1.5e9


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("burst", [16 << 10, 250 << 10, 256 << 10, 300 << 10, 1 << 20, 3 << 20])
@pytest.mark.parametrize("speed", [1.25e6, 1.25e7, 1.25e8])
def test_what_a_bucket_lets_through_at_once_does_not_count(size: int, burst: int, speed: float) -> None:
    paced = Paced(size, Network(latency_seconds=1e-4, bytes_per_second=speed), burst)
    assert probe.measure(paced).bytes_per_second == pytest.approx(speed, rel=0.3)
    assert paced.now < 0.3 + burst / speed


@pytest.mark.parametrize(("latency", "wait"), [(1e-3, 0.01), (0.01, 0.05), (0.05, 0.2)])
@pytest.mark.parametrize("speed", [1.25e5, 1.25e7, 1.25e8])
def test_rings_that_wait_for_each_other(latency: float, wait: float, speed: float) -> None:
    """Of all ranks' clocks the first and the last reading count, else ranks that take turns see a faster link."""
    paced = Paced(2, Network(latency_seconds=latency, bytes_per_second=speed), wait=wait)
    found = probe.measure(paced)
    assert found.latency_seconds == pytest.approx(latency, rel=0.1)
    assert 0.75 * speed <= found.bytes_per_second <= 1.05 * speed
    assert paced.now < 30 * (latency + wait) + 1.0


def test_a_fast_link_is_no_slower_where_rings_wait() -> None:
    paced = Paced(2, Network(latency_seconds=1e-4, bytes_per_second=5e9), wait=0.01)
    assert probe.measure(paced).bytes_per_second == pytest.approx(5e9, rel=0.1)


def test_a_transfer_that_the_machine_makes_slow_does_not_count() -> None:
    network = Network(latency_seconds=1e-4, bytes_per_second=1.25e7)
    for place in range(16):
        busy = tuple(0.05 * (number == place) for number in range(40))
        paced = Paced(2, network, burst=300e3, busy=busy)
        assert probe.measure(paced).bytes_per_second == pytest.approx(1.25e7, rel=0.3), place


def test_alone_there_is_no_network() -> None:
    with pytest.raises(ValueError, match="needs at least 2 ranks"):
        probe.Ring(ALONE)  # type: ignore[arg-type]
