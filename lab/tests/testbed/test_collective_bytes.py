"""What each way for payloads to meet says that it puts on a link, an interface counts."""

import sys
from pathlib import Path
from typing import Any

import pytest

from gravac_lab.bench.network import INTERFACE, HostNetwork
from gravac_lab.bench.ranks import Place, Ranks
from gravac_lab.bench.wire import FRAME_BYTES

pytestmark = pytest.mark.distributed
REPEATS = 6
"""Every one of the three ranks leads twice."""


def sent(counted: dict[str, Any]) -> int:
    """Bytes that left, TCP's framing apart."""
    return int(counted["tx_bytes"] - FRAME_BYTES * counted["tx_packets"])


@pytest.mark.usefixtures("networks")
def test_bytes_said_are_bytes_counted(tmp_path: Path) -> None:
    with HostNetwork(3, None) as network:
        places = [
            Place(address=host.address, interface=INTERFACE, core=None, wrap=host.command)
            for host in network.hosts
        ]
        words = [
            sys.executable,
            "-m",
            "gravac_lab.programs.wire",
            "rank",
            "--codec",
            "topk",
            "--interface",
            INTERFACE,
        ]
        ranks = Ranks(words, places, 29600, tmp_path / "ranks")
        try:
            ranks.ready(60)
            size = {"n": 1_000_000, "cf": 50.0}
            for collective in ("gather", "shared", "shared:leader=largest", "reduce-scatter"):
                ranks.ask(60, **size, repeats=1, collective=collective)  # connections are made by the first
                nothing = ranks.ask(60, **size, repeats=0, collective=collective)
                taken = ranks.ask(60, **size, repeats=REPEATS, collective=collective)
                for rank, (more, less) in enumerate(zip(taken, nothing, strict=True)):
                    counted, said = sent(more) - sent(less), more["sent_bytes"]
                    assert said > REPEATS * 80_000
                    assert counted == pytest.approx(said, rel=0.03), (collective, rank, counted, said)
        finally:
            ranks.close()
