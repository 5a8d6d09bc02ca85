"""Several ranks on each host, which share its link."""

import time
from typing import Any

import torch
import torch.distributed as dist

from gravac.collectives import ProcessGroupCommunicator
from gravac_agent import Agent
from gravac_agent.network.doubling import Doubling
from gravac_agent.network.probe import Ring, Seconds, measure
from tests.ranks.scenarios.model import wrapped

TIMES = 5


def shared_link(rank: int, world: int, folder: str, nbytes: int) -> dict[str, Any]:
    """Say how many ranks share a link, as an agent found out, and the seconds of an all-to-all.

    Args:
        rank: As in every scenario, and so the next two.
        world: See there.
        folder: See there.
        nbytes: Of the all-to-all, on each rank.
    """
    module = wrapped()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    with Agent(module, optimizer, data_dir=folder, controller=None, policy="auto", levels="flat") as agent:
        assert agent._parts is not None
        network = agent._parts.spec.network
    assert network is not None
    mine = torch.zeros(nbytes // world * world, dtype=torch.uint8)
    seconds = []
    for _ in range(TIMES):
        dist.barrier()
        began = time.monotonic()
        dist.all_to_all_single(torch.empty_like(mine), mine)
        dist.barrier()
        seconds.append(time.monotonic() - began)
    return {"ranks_per_link": network.ranks_per_link, "seconds": sorted(seconds)[TIMES // 2]}


class InTurn(Ring):
    """A rank that begins ``late`` seconds after the first one."""

    late = 0.0

    def seconds(self, nbytes: int) -> Seconds:
        time.sleep(self.late)
        return super().seconds(nbytes)


def rings_in_turn(rank: int, world: int, folder: str, turn: float) -> dict[str, Any]:
    """Measure the link of two hosts, by as many rings as a host has ranks, each ``turn`` seconds after another."""
    assert dist.group.WORLD is not None
    each = world // 2
    rings = [dist.new_group([index, index + each], backend="gloo") for index in range(each)]
    ring = InTurn(ProcessGroupCommunicator(rings[rank % each]), everyone=Doubling(dist.group.WORLD))
    ring.late = turn * (rank % each)
    return {"bytes_per_second": measure(ring).bytes_per_second}
