"""One rank that exchanges payloads with the others, when told to, and reads its network interface meanwhile."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.aggregators import build
from gravac.compressors import Key
from gravac.memories import Bucket
from gravac_agent.bench.rank import Answer, counters, serve


@contextmanager
def setup(chosen: argparse.Namespace, rank: int, world_size: int) -> Iterator[tuple[dict[str, Any], Answer]]:
    """Answers ``{"n": …, "cf": …, "repeats": …}`` (and ``"collective"``, by default gather) by what this rank handed
    over and its interface counted: bytes a repeat handed to the collective, bytes that all repeats say they put on the
    link, and all bytes and packets sent."""
    world = dist.group.WORLD
    assert world is not None
    held: dict[int, Tensor] = {}

    def answer(told: dict[str, Any]) -> dict[str, Any]:
        aggregator = build(chosen.codec, world, told.get("collective", "gather"))
        n, payload_bytes, sent_bytes = told["n"], 0, 0
        if n not in held:
            held.clear()
            held[n] = torch.randn(n, generator=torch.Generator().manual_seed(rank))
        out = torch.empty(n)
        dist.barrier()
        before = counters(chosen.interface)
        for step in range(told["repeats"]):
            bucket = Bucket(0, ("x",), (n,))
            draft = aggregator.prepare(bucket, held[n], (told["cf"],), Key(0, step, 0, rank), torch.float32)
            flight = draft.send(told["cf"])
            flight.work.wait()
            flight.mean_into(out)
            payload_bytes, sent_bytes = flight.payload_bytes, sent_bytes + flight.sent_bytes
        dist.barrier()
        after = counters(chosen.interface)
        said = {"payload_bytes": payload_bytes, "sent_bytes": sent_bytes}
        return said | {name: after[name] - before[name] for name in after}

    yield {}, answer


def main() -> None:
    parser = argparse.ArgumentParser(prog="gravac_agent.bench.exchange", description=__doc__)
    parser.add_argument("--codec", required=True)
    parser.add_argument("--interface", required=True)
    serve(partial(setup, parser.parse_args()))


if __name__ == "__main__":
    main()
