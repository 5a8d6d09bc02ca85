"""Ranks of one host share its link to the others: what an exchange costs there, and how the agent knows."""

from dataclasses import replace
from pathlib import Path

import pytest

from gravac.collectives import Network, cost
from tests.support.lab import needs_lab
from tests.support.ranks.harness import run_ranks as run_ranks_in

pytestmark = pytest.mark.distributed


MESSAGE_BYTES, BITS_PER_SECOND = 3 << 20, 50e6
GOODPUT = 0.956
"""Share of a link's bytes that TCP carries."""


@needs_lab
def test_an_all_to_all_costs_what_the_hosts_links_allow(tmp_path: Path) -> None:
    """Three ranks on each of two hosts send nine messages over a link. Each was taken to send five over its own."""
    from gravac_lab.bench.namespaces import NetworkUnavailable  # only here: see tests/support/lab.py
    from gravac_lab.bench.network import HostNetwork

    try:
        with HostNetwork(2, BITS_PER_SECOND) as network:
            found = run_ranks_in(tmp_path, "shared_link", 6, hosts=network.hosts, nbytes=MESSAGE_BYTES)
    except NetworkUnavailable as error:
        pytest.skip(str(error))
    assert [rank["ranks_per_link"] for rank in found] == [3] * 6
    known = Network(latency_seconds=0.0, bytes_per_second=GOODPUT * BITS_PER_SECOND / 8, ranks_per_link=3)
    shared = cost.all_to_all(known, 6, MESSAGE_BYTES)
    own = cost.all_to_all(replace(known, ranks_per_link=1), 6, MESSAGE_BYTES)
    assert shared / own == pytest.approx(9 / 5)
    assert shared / 1.1 < found[0]["seconds"] < 1.5 * shared, (found, shared, own)
