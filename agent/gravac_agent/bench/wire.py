"""What a nominal CF is on the wire: bytes by the codec's own layout, and those really packed."""

import argparse
from collections.abc import Iterator
from typing import Any

import torch

from gravac.compressors import Key, build
from gravac_agent.bench.program import options, speak

KEY = Key(seed=0, step=0, bucket=0, rank=0)


def measured(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each n and CF. ``packed_bytes``: of a message made of n normal numbers; None where n is too large."""
    for n in chosen.n:
        x = torch.randn(n, generator=torch.Generator().manual_seed(0)) if n <= chosen.pack_up_to else None
        for cf in chosen.cf:
            codec = build(chosen.codec)
            declared = codec.wire_bytes(n, cf, torch.float32)
            packed = None if x is None else codec.compress(x, cf, KEY, torch.float32).pack().numel()
            yield {"row": {"n": n, "cf": cf, "payload_bytes": declared, "packed_bytes": packed}}


def main() -> None:
    parser = options("wire", __doc__)
    parser.add_argument("--codec", required=True)
    parser.add_argument("--cf", type=float, nargs="+", required=True)
    parser.add_argument("--pack-up-to", type=int, required=True, help="largest n that is really compressed")
    speak(measured, parser.parse_args())


if __name__ == "__main__":
    main()
