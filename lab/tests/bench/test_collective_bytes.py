"""What each way for payloads to meet says that it puts on a link, an interface counts."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gravac.collectives.messages import HEADER_BYTES
from gravac.compressors import build
from gravac_lab.bench.network import INTERFACE, HostNetwork
from gravac_lab.bench.ranks import Place, Ranks
from gravac_lab.bench.wire import FRAME_BYTES

pytestmark = pytest.mark.distributed
REPEATS = 6
"""Every one of three ranks leads twice, of four at least once."""


def sent(counted: dict[str, Any]) -> int:
    """Bytes that left, TCP's framing apart."""
    return int(counted["tx_bytes"] - FRAME_BYTES * counted["tx_packets"])


@pytest.mark.usefixtures("networks")
@pytest.mark.parametrize(
    ("codec", "cf", "world"),
    [("topk", 50.0, 3), ("topk+twobit", 5.1, 2), ("topk+twobit", 5.1, 4), ("topk+twobit", 5.1, 8)],
)
def test_bytes_said_are_bytes_counted(tmp_path: Path, codec: str, cf: float, world: int) -> None:
    with HostNetwork(world, None) as network:
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
            codec,
            "--interface",
            INTERFACE,
        ]
        ranks = Ranks(words, places, 29600, tmp_path / "ranks")
        try:
            ranks.ready(60)
            size = {"n": 1_000_000, "cf": cf}
            declared = HEADER_BYTES + build(codec).wire_bytes(1_000_000, cf, torch.float32)
            for collective in ("gather", "shared", "shared:leader=largest", "owners"):
                ranks.ask(60, **size, repeats=1, collective=collective)  # connections are made by the first
                nothing = ranks.ask(60, **size, repeats=0, collective=collective)
                taken = ranks.ask(60, **size, repeats=REPEATS, collective=collective)
                for rank, (more, less) in enumerate(zip(taken, nothing, strict=True)):
                    counted, said = sent(more) - sent(less), more["sent_bytes"]
                    assert said > REPEATS * 80_000
                    assert collective != "gather" or more["payload_bytes"] == declared
                    assert counted == pytest.approx(said, rel=0.03), (collective, rank, counted, said)
        finally:
            ranks.close()
