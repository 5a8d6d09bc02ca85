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
TIMES = 5
"""Measurements of a link: which message empties a bucket differs."""


@pytest.mark.usefixtures("networks")
@pytest.mark.parametrize(
    ("megabits", "burst_bytes", "world"),
    [
        (10.0, None, 2),
        (10.0, 256 << 10, 2),
        (10.0, 1 << 20, 3),
        (100.0, None, 2),
        (100.0, None, 6),
        (100.0, 256 << 10, 2),
    ],
)
def test_the_rate_is_the_one_that_the_link_keeps_up(
    tmp_path: Path, megabits: float, burst_bytes: int | None, world: int
) -> None:
    truth = GOODPUT * megabits * 1e6 / 8
    with HostNetwork(world, megabits * 1e6, burst_bytes) as network:
        places = [
            Place(address=host.address, interface=INTERFACE, core=None, wrap=host.command)
            for host in network.hosts
        ]
        words = [sys.executable, "-m", "gravac_lab.programs.collective", "--codec", "topk"]
        ranks = Ranks(words, places, 29600, tmp_path / "ranks")
        try:
            ranks.ready(120.0)
            found = []
            for _ in range(TIMES):
                time.sleep(0.1 + 1.2 * (burst_bytes or 0) / truth)  # the bucket fills again
                first, *others = ranks.ask(60.0, do="measure")
                assert all(each == first for each in others)
                found.append(first["bytes_per_second"] / truth)
        finally:
            ranks.close()
    # One measurement is one glance at a busy machine: of five one was .23, one 1.67, and four were within 1.09.
    least, *middle, most = sorted(found)
    assert all(1 / 1.5 < one < 1.5 for one in middle), found
    assert least > 0.1, found
    assert most < 3, found
