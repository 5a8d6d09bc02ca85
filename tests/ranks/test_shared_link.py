"""Ranks of one host share its link to the others: what an exchange costs there, and how the agent knows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gravac.collectives import Network, cost
from tests.support.lab import needs_lab
from tests.support.ranks.harness import run_ranks as run_ranks_in

pytestmark = pytest.mark.distributed


MESSAGE_BYTES, BITS_PER_SECOND = 3 << 20, 50e6
GOODPUT = 0.956
"""Share of a link's bytes that TCP carries."""


def on_two_hosts(tmp_path: Path, scenario: str, ranks: int, **arguments: Any) -> list[dict[str, Any]]:
    from gravac_lab.bench.namespaces import NetworkUnavailable  # only here: see tests/support/lab.py
    from gravac_lab.bench.network import HostNetwork

    try:
        with HostNetwork(2, BITS_PER_SECOND) as network:
            return run_ranks_in(tmp_path, scenario, ranks, hosts=network.hosts, **arguments)
    except NetworkUnavailable as error:
        pytest.skip(str(error))


@needs_lab
def test_an_all_to_all_costs_what_the_hosts_links_allow(tmp_path: Path) -> None:
    """Three ranks on each of two hosts send nine messages over a link. Each was taken to send five over its own."""
    found = on_two_hosts(tmp_path, "shared_link", 6, nbytes=MESSAGE_BYTES)
    assert [rank["ranks_per_link"] for rank in found] == [3] * 6
    known = Network(latency_seconds=0.0, bytes_per_second=GOODPUT * BITS_PER_SECOND / 8, ranks_per_link=3)
    shared = cost.all_to_all(known, 6, MESSAGE_BYTES)
    own = cost.all_to_all(replace(known, ranks_per_link=1), 6, MESSAGE_BYTES)
    assert shared / own == pytest.approx(9 / 5)
    assert shared / 1.1 < found[0]["seconds"] < 1.5 * shared, (found, shared, own)


@needs_lab
def test_rings_that_send_in_turn_see_no_faster_link(tmp_path: Path) -> None:
    """As where a host has more ranks than cores: by its own clock, each has the link for itself."""
    found = on_two_hosts(tmp_path, "rings_in_turn", 8, turn=0.02)
    shared = BITS_PER_SECOND / 8 / 4
    assert 0.5 * shared < found[0]["bytes_per_second"] < 1.33 * shared, found
