"""One rank whose payloads meet the others' in every way there is, when told to, timed."""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.collectives import (
    COLLECTIVES,
    AllReduce,
    ProcessGroupCommunicator,
    Workload,
    choose,
    parse_collective,
)
from gravac.compressors import Key, Payload, build
from gravac.compressors.base import Compressor
from gravac_agent.bench.rank import Answer, serve
from gravac_agent.network.probe import measure

DENSE = "dense all-reduce"
DTYPE = torch.float32


@dataclass(kw_only=True)
class Meeting:
    """A gradient of this rank and its payload: ``load`` makes them, ``meet`` sends them."""

    group: ProcessGroupCommunicator
    codec: Compressor
    x: Tensor = field(default_factory=lambda: torch.empty(0))
    out: Tensor = field(default_factory=lambda: torch.empty(0))
    cf: float = 1.0
    step: int = 0
    _payload: Payload | None = None

    def __post_init__(self) -> None:
        self.network = measure(self.group)  # before anything else is under way
        self._dense = AllReduce(self.group)

    def load(self, n: int, cf: float) -> dict[str, Any]:
        """Make a gradient of ``n`` normal numbers. What each way would take by the cost model and put on a rank's link,
        the dense one too, and which of the others it would choose."""
        self.x = torch.randn(n, generator=torch.Generator().manual_seed(self.group.rank))
        self.out, self.cf = torch.empty(n), cf
        self._payload = self.codec.compress(self.x, cf, self._key(), DTYPE)
        load = Workload(self.codec, n, cf, DTYPE, self.group.size)
        dense = Workload(build("dense"), n, 1.0, DTYPE, self.group.size)
        chosen = choose(self.network, load)
        ways = {
            name: {
                "predicted_seconds": seconds,
                "payload_bytes": COLLECTIVES[name](self.group).payload_bytes(load),
                "link_bytes": COLLECTIVES[name](self.group).link_bytes(load),
                "chosen": name == chosen.name,
            }
            for name, seconds in chosen.predicted.items()
        }
        ways[DENSE] = {
            "predicted_seconds": self._dense.seconds(self.network, dense),
            "payload_bytes": self._dense.payload_bytes(dense),
            "link_bytes": self._dense.link_bytes(dense),
            "chosen": False,
        }
        return {"ways": ways}

    def meet(self, ways: list[str]) -> dict[str, Any]:
        """Wall seconds of each of ``ways``, one after the other: from the payload (of ``dense``: from the gradient) to
        the mean. Ranks begin together."""
        self.step += 1
        seconds = []
        for way in ways:
            self.out.copy_(self.x)
            dist.barrier()
            begun = time.perf_counter()
            if way == DENSE:
                self._dense.reduce_in_place(self.out).work.wait()
            else:
                self._meet(way)
            seconds.append(time.perf_counter() - begun)
        return {"seconds": seconds}

    def _meet(self, way: str) -> None:
        make = parse_collective(way)
        assert make is not None
        assert self._payload is not None
        flight = make(self.group).exchange(self.codec, self._payload, self.x, self.cf, self._key(), DTYPE)
        flight.work.wait()
        flight.mean_into(self.out)

    def _key(self) -> Key:
        return Key(seed=0, step=self.step, bucket=0, rank=self.group.rank)


@contextmanager
def setup(chosen: argparse.Namespace, rank: int, world_size: int) -> Iterator[tuple[dict[str, Any], Answer]]:
    """Answers ``{"do": "load", "n": …, "cf": …}`` and ``{"do": "meet", "ways": […]}``."""
    assert dist.group.WORLD is not None
    meeting = Meeting(group=ProcessGroupCommunicator(dist.group.WORLD), codec=build(chosen.codec))
    network = meeting.network

    def answer(told: dict[str, Any]) -> dict[str, Any]:
        if told["do"] == "load":
            return meeting.load(told["n"], told["cf"])
        return meeting.meet(told["ways"])

    yield (
        {"latency_seconds": network.latency_seconds, "bytes_per_second": network.bytes_per_second},
        answer,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="gravac_agent.bench.meet", description=__doc__)
    parser.add_argument("--codec", required=True)
    serve(partial(setup, parser.parse_args()))


if __name__ == "__main__":
    main()
