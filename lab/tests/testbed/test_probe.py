"""What the probe finds out about a shaped link: the rate that it keeps up, behind a token bucket, too."""

import sys
import time
from pathlib import Path

import pytest

from gravac_lab.bench.network import INTERFACE, HostNetwork
from gravac_lab.bench.ranks import Place, Ranks

pytestmark = pytest.mark.distributed
GOODPUT = 0.956
"""Share of a link's bytes that TCP carries."""


def found(tmp_path: Path, megabits: float, burst_bytes: int | None, hosts: int = 2) -> float:
    """Return the measured rate of real gloo ranks, relative to what the link keeps up."""
    with HostNetwork(hosts, megabits * 1e6, burst_bytes) as network:
        places = [
            Place(address=host.address, interface=INTERFACE, core=None, wrap=host.command)
            for host in network.hosts
        ]
        words = [sys.executable, "-m", "gravac_lab.programs.collective", "--codec", "topk"]
        ranks = Ranks(words, places, 29600, tmp_path / f"{time.monotonic_ns()}")
        try:
            (first, *others) = ranks.ready(120.0)
        finally:
            ranks.close()
    assert all(each["bytes_per_second"] == first["bytes_per_second"] for each in others)
    return float(first["bytes_per_second"]) / (GOODPUT * megabits * 1e6 / 8)


@pytest.mark.usefixtures("networks")
@pytest.mark.parametrize("megabits", [10.0, 100.0])
@pytest.mark.parametrize("burst_bytes", [None, 256 << 10])
def test_the_rate_is_the_one_that_the_link_keeps_up(
    tmp_path: Path, megabits: float, burst_bytes: int | None
) -> None:
    assert 1 / 1.5 < found(tmp_path, megabits, burst_bytes) < 1.5


@pytest.mark.usefixtures("networks")
def test_a_bucket_of_a_megabyte_is_seen_by_three_ranks_on_a_slow_link(tmp_path: Path) -> None:
    assert 1 / 1.5 < found(tmp_path, 10.0, 1 << 20, hosts=3) < 1.5
