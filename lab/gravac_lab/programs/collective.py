"""One rank that exchanges payloads by every collective, on request, and times them."""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
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
from gravac_agent.network.probe import Ring, measure
from gravac_lab.programs.process import Answer, serve_requests

DENSE = "dense all-reduce"
DTYPE = torch.float32


@dataclass(kw_only=True)
class Exchanger:
    """A gradient of this rank and its payload: ``load`` makes them, ``exchange`` sends them."""

    group: ProcessGroupCommunicator
    codec: Compressor
    x: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float32))
    out: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float32))
    cf: float = 1.0
    step: int = 0
    _payload: Payload | None = None

    def __post_init__(self) -> None:
        self.network = measure(Ring(self.group))  # while nothing else is in flight
        self._dense = AllReduce(self.group)

    def load(self, n: int, cf: float) -> dict[str, Any]:
        """Make a gradient of ``n`` normal numbers and its payload.

        Returns:
            By collective, the dense one too: the cost model's seconds and bytes, and whether the model chooses it.
        """
        self.x = torch.randn(n, generator=torch.Generator().manual_seed(self.group.rank), dtype=torch.float32)
        self.out = torch.empty(n, dtype=torch.float32)
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

    def exchange(self, ways: list[str]) -> dict[str, Any]:
        """Time these collectives, one after the other. All ranks begin together.

        Returns:
            Wall seconds of each, from the payload (of the dense one: from the gradient) to the mean.
        """
        self.step += 1
        seconds = []
        for way in ways:
            self.out.copy_(self.x)
            dist.barrier()
            began = time.perf_counter()
            if way == DENSE:
                self._dense.reduce_in_place(self.out).work.wait()
            else:
                self._exchange(way)
            seconds.append(time.perf_counter() - began)
        return {"seconds": seconds}

    def _exchange(self, way: str) -> None:
        make = parse_collective(way)
        assert make is not None
        assert self._payload is not None
        layout = self.codec.layout(self._payload.numel, self._payload.cf, DTYPE)
        flight = make(self.group).exchange(layout, self._payload, self.x, self._key())
        flight.work.wait()
        flight.mean_into(self.out)

    def _key(self) -> Key:
        return Key(seed=0, step=self.step, bucket=0, rank=self.group.rank)


@contextmanager
def setup(chosen: argparse.Namespace, rank: int, world_size: int) -> Iterator[tuple[dict[str, Any], Answer]]:
    """Answer requests ``{"do": "load", "n": …, "cf": …}``, ``{"do": "exchange", "ways": […]}``, ``{"do": "measure"}``.

    ``measure``: the network, again.
    """
    assert dist.group.WORLD is not None
    exchanger = Exchanger(group=ProcessGroupCommunicator(dist.group.WORLD), codec=build(chosen.codec))

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "measure":
            dist.barrier()
            return asdict(measure(Ring(exchanger.group)))
        if request["do"] == "load":
            return exchanger.load(request["n"], request["cf"])
        return exchanger.exchange(request["ways"])

    yield asdict(exchanger.network), answer


def main() -> None:
    parser = argparse.ArgumentParser(prog="gravac_lab.programs.collective", description=__doc__)
    parser.add_argument("--codec", required=True)
    serve_requests(partial(setup, parser.parse_args()))


if __name__ == "__main__":
    main()
