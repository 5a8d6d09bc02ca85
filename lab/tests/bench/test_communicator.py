"""Both directions of a link carry payloads at once, where those of gloo's own collectives take turns."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gravac_lab.bench.network import INTERFACE, HostNetwork

pytestmark = pytest.mark.distributed
RANK = """
import statistics, time, torch, torch.distributed as dist
from gravac.collectives import ProcessGroupCommunicator
dist.init_process_group("gloo")
rank, ours, gloo = dist.get_rank(), ProcessGroupCommunicator(dist.group.WORLD), dist.distributed_c10d
mine = torch.full((1 << 20,), rank, dtype=torch.uint8)
both, came = torch.cat([mine, mine]), torch.empty(2 << 20, dtype=torch.uint8)
kinds = {
    "gather": (lambda: ours.gather(came, mine).wait(), lambda: gloo.all_gather_into_tensor(came, mine)),
    "exchange": (lambda: ours.exchange(came, both).wait(), lambda: gloo.all_to_all_single(came, both)),
}
for kind, calls in kinds.items():
    times = [], []
    for _ in range(5):
        for call, seconds in zip(calls, times):
            dist.barrier()
            began = time.monotonic()
            time.sleep(0.02 * rank)
            call()
            dist.barrier()
            seconds.append(time.monotonic() - began)
            assert torch.equal(came, torch.cat([torch.zeros_like(mine), torch.ones_like(mine)]))
            came.fill_(9)
    if rank == 0:
        print(kind, *map(statistics.median, times), flush=True)
"""


@pytest.mark.usefixtures("networks")
def test_two_ranks_send_at_the_same_time(tmp_path: Path) -> None:
    with HostNetwork(2, 1e8) as network:
        ranks = []
        for rank, host in enumerate(network.hosts):
            environment = {"RANK": str(rank), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": INTERFACE}
            environment |= {
                "MASTER_ADDR": network.hosts[0].address,
                "MASTER_PORT": "29500",
                "OMP_NUM_THREADS": "1",
            }
            words = host.command([sys.executable, "-W", "ignore", "-c", RANK])
            ranks.append(
                subprocess.Popen(words, env=os.environ | environment, stdout=subprocess.PIPE, text=True)
            )
        output = [rank.communicate(timeout=120)[0] for rank in ranks]
    ratios = {kind: float(ours) / float(gloo) for kind, ours, gloo in map(str.split, output[0].splitlines())}
    # On a quiet machine .77 and .60: .11 s for 84 ms of bytes and 20 ms of delay, where gloo takes .15 and .19 s.
    assert ratios["gather"] < 0.88, ratios
    assert ratios["exchange"] < 0.8, ratios
