"""What a nominal CF is on the wire.

``python -m gravac_lab.programs.wire layout …`` runs on one core and reports bytes by the codec's own layout. ``rank``
is one of several ranks, which exchange payloads and read the bytes from a network interface's counters.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gravac import aggregators
from gravac.compressors import Key, build
from gravac.memories import Bucket
from gravac_lab.programs.process import Answer, add_sizes, counters, run_program, serve_requests

KEY = Key(seed=0, step=0, bucket=0, rank=0)


def layout(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each n and CF. ``packed_bytes``: of a message of n normal numbers; None where n is too large."""
    for n in chosen.n:
        x = (
            torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
            if n <= chosen.pack_up_to
            else None
        )
        for cf in chosen.cf:
            codec = build(chosen.codec)
            declared = codec.wire_bytes(n, cf, torch.float32)
            packed = None if x is None else codec.compress(x, cf, KEY, torch.float32).pack().numel()
            yield {"row": {"n": n, "cf": cf, "payload_bytes": declared, "packed_bytes": packed}}


@contextmanager
def rank_setup(
    chosen: argparse.Namespace, rank: int, world_size: int
) -> Iterator[tuple[dict[str, Any], Answer]]:
    """Answer requests ``{"n": …, "cf": …, "repeats": …}``, and ``"collective"``, by default gather.

    An answer has ``payload_bytes``, handed to the collective in one repeat; ``sent_bytes``, put on the link by the
    collective's own count in all of them; and what the interface counted.
    """
    world = dist.group.WORLD
    assert world is not None
    gradients: dict[int, Tensor] = {}

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        aggregator = aggregators.build(chosen.codec, world, request.get("collective", "gather"))
        n, payload_bytes, sent_bytes = request["n"], 0, 0
        if n not in gradients:
            gradients.clear()
            gradients[n] = torch.randn(n, generator=torch.Generator().manual_seed(rank), dtype=torch.float32)
        out = torch.empty(n, dtype=torch.float32)
        dist.barrier()
        before = counters(chosen.interface)
        for step in range(request["repeats"]):
            bucket = Bucket(0, ("x",), (n,))
            draft = aggregator.open(bucket).prepare(
                gradients[n], (request["cf"],), Key(0, step, 0, rank), torch.float32
            )
            flight = draft.send(request["cf"])
            flight.work.wait()
            flight.mean_into(out)
            payload_bytes, sent_bytes = flight.payload_bytes, sent_bytes + flight.sent_bytes
        dist.barrier()
        after = counters(chosen.interface)
        counted = {name: after[name] - before[name] for name in after}
        return {"payload_bytes": payload_bytes, "sent_bytes": sent_bytes} | counted

    yield {}, answer


def main() -> None:
    parser = argparse.ArgumentParser(prog="gravac_lab.programs.wire", description=__doc__)
    programs = parser.add_subparsers(dest="program", required=True)
    one_core, rank = add_sizes(programs.add_parser("layout")), programs.add_parser("rank")
    for each in (one_core, rank):
        each.add_argument("--codec", required=True)
    one_core.add_argument("--cf", type=float, nargs="+", required=True)
    one_core.add_argument("--pack-up-to", type=int, required=True, help="largest n that is really compressed")
    rank.add_argument("--interface", required=True)
    chosen = parser.parse_args()
    if chosen.program == "layout":
        run_program(layout, chosen)
    else:
        serve_requests(partial(rank_setup, chosen))


if __name__ == "__main__":
    main()
