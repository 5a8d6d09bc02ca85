"""What a collective really hands to torch, operation by operation."""

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.aggregators import build
from gravac.collectives import COLLECTIVES, ProcessGroupCommunicator, Work, Workload
from gravac.compressors import Key
from gravac.compressors import build as build_codec
from gravac.memories import Bucket

BUCKETS = Bucket(0, ("a",), (20_000,)), Bucket(1, ("b", "c"), (7001, 30)), Bucket(2, ("d",), (5,))


class Counting(ProcessGroupCommunicator):
    """Counts the bytes that it is handed, and of those the ones for other ranks."""

    handed = linked = 0

    def exchange(self, out: Tensor, x: Tensor) -> Work:
        assert x.numel() % self.size == out.numel() % self.size == 0
        assert x.numel() == out.numel()
        self.handed += x.nbytes
        self.linked += x.nbytes // self.size * (self.size - 1)
        return super().exchange(out, x)

    def gather(self, out: Tensor, x: Tensor) -> Work:
        self.handed += x.nbytes
        self.linked += x.nbytes * (self.size - 1)
        return super().gather(out, x)


def issued_bytes(rank: int, world: int, folder: str, codec: str, collective: str) -> list[dict[str, int]]:
    """Exchange three buckets that are in flight at once, at two CFs. Returns what each exchange was."""
    assert dist.group.WORLD is not None
    found = []
    for cf in (4.0, 30.0):
        ends = Counting(dist.group.WORLD)
        aggregator = build(codec, ends, collective)
        flights = []
        for one in BUCKETS:
            numel = sum(one.numels)
            x = torch.randn(numel, generator=torch.Generator().manual_seed(rank))
            before = ends.issued, ends.handed, ends.linked
            draft = aggregator.open(one).prepare(x, (cf,), Key(0, 1, one.number, rank), torch.float32)
            flight = draft.send(cf)
            flights.append((flight, numel))
            load = Workload(build_codec(codec), numel, cf, torch.float32, world)
            way = COLLECTIVES[collective](ends)
            found.append(
                {
                    "operations": ends.issued - before[0],
                    "handed": ends.handed - before[1],
                    "linked": ends.linked - before[2],
                    "said handed": flight.payload_bytes,
                    "said linked": flight.sent_bytes,
                    "formula handed": way.payload_bytes(load),
                    "formula linked": way.link_bytes(load),
                }
            )
        for flight, numel in flights:
            flight.work.wait()
            flight.mean_into(torch.empty(numel))
    return found
