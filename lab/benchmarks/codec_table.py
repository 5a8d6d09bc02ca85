"""Wire CF, error and speed of codecs on random elements: python lab/benchmarks/codec_table.py [CODEC[@CF] ...]."""

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from gravac.compressors import Key, build

N = 1_000_000
REPEATS = 15
CODECS = (
    "nearest:levels=39",
    "nearest:levels=15",
    "nearest:levels=15,coding=huffman",
    "dither:levels=15",
    "qsgd:bits=4,block=64",
    "nearest:levels=7",
    "nearest:levels=7,coding=huffman",
    "dither:levels=7",
    "dither-subtractive:levels=7",
    "qsgd:bits=3,block=64",
    "nearest:levels=5",
    "dither:levels=5",
    "dither:levels=5,coding=huffman",
    "dither-subtractive:levels=5",
    "nearest:levels=3",
    "dither:levels=3",
    "dither-subtractive:levels=3",
    "dither-subtractive:levels=3,coding=huffman",
    "qsgd:bits=2,block=64",
    "blocksign",
    "scaledsign",
    "int4",
    "topk@10",
    "chunktopk@10",
    "sparseloco@10",
    "sparseloco@64",
)


def nanoseconds(work: Callable[[], object]) -> float:
    """CPU time per element of the fastest of some calls."""
    best = float("inf")
    for _ in range(REPEATS):
        begin = time.thread_time()
        work()
        best = min(best, time.thread_time() - begin)
    return best / N * 1e9


def row(text: str, samples: tuple[Tensor, ...]) -> str:
    """One codec's line of the table, as Markdown."""
    name, _, cf = text.partition("@")
    codec, key = build(name), Key(0, 0, 0, 0)
    payloads = [codec.compress(x, float(cf or 1), key, torch.float32) for x in samples]
    errors = [
        float((codec.decode(payload) - x).square().sum() / x.square().sum())
        for payload, x in zip(payloads, samples, strict=True)
    ]
    encode = nanoseconds(lambda: codec.compress(samples[0], float(cf or 1), key, torch.float32))
    arrived = codec.layout(N, float(cf or 1), torch.float32).unpack(payloads[0].pack(), key)
    decode = nanoseconds(lambda: codec.decode(arrived))
    shown = f"`{name}`" + (f", CF {cf}" if cf else "")
    figures = " | ".join(f"{error:.3f}" for error in errors)
    return f"| {shown} | {4 * N / payloads[0].nbytes:.1f} | {figures} | {encode:.1f} ns | {decode:.1f} ns |"


def main() -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    samples = torch.randn(N), torch.distributions.Laplace(0.0, 1.0).sample((N,))
    for text in sys.argv[1:] or CODECS:
        print(row(text, samples))


if __name__ == "__main__":
    main()
