"""What encoding costs on a GPU: Top-k with error feedback against torch.topk and against the memory's own speed.

    python benchmarks/cuda.py [--n 100000000] [--pairs 21] [--json]

Seconds are the device's, between events on its stream, and medians; the two sides take turns, and ratios are of pairs,
with quartiles. All buffers are kept between steps on both sides. The limit line is a copy from one tensor to another,
bytes read and bytes written; Top-k's share of it counts the fewest bytes that anyone can move: gradient and residual
read, the new residual written, k values and places written.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from gravac import kernels

Side = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    n: int
    cf: float
    baseline: float
    """Seconds of the other side, median."""
    seconds: float
    """Ours, median."""
    ratio: float
    """Baseline / ours, median over pairs: above 1, ours is faster."""
    quartiles: tuple[float, float]
    host_seconds: float
    """Time until ours has been started, median: what the trainer's thread pays."""
    share: float | None = None
    """Of the copy's bytes a second, counting the fewest bytes."""


class Step:
    """One gradient, its residual, and every buffer a step needs."""

    def __init__(self, n: int) -> None:
        generator = torch.Generator("cuda").manual_seed(0)
        self.g = torch.randn(n, generator=generator, device="cuda")
        self.e = torch.randn(n, generator=generator, device="cuda") / 2
        self.p, self.size = torch.empty_like(self.g), torch.empty_like(self.g)
        self.buffers: dict[int, tuple[Tensor, Tensor]] = {}

    def copy(self) -> None:
        self.p.copy_(self.g)

    def torch_topk(self, k: int) -> tuple[Tensor, Tensor]:
        torch.add(self.g, self.e, out=self.p)
        torch.abs(self.p, out=self.size)
        places = torch.topk(self.size, k, sorted=False).indices
        values = self.p[places]
        self.p[places] = 0.0
        return places, values

    def count(self) -> kernels.Tally:
        return kernels.tally(self.g, self.e, out=self.p)

    def ours(self, k: int) -> tuple[Tensor, Tensor]:
        hint = self.count()
        empty = torch.empty(k, dtype=torch.int32, device="cuda"), torch.empty(k, device="cuda")
        indices, values = self.buffers.setdefault(k, empty)
        return kernels.take_top(self.p, k, hint, clear=True, indices=indices, values=values)


def device_seconds(side: Side) -> tuple[float, float]:
    """On the device, and on the host until all was started."""
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begun = time.perf_counter()
    begin.record()
    side()
    end.record()
    started = time.perf_counter() - begun
    end.synchronize()
    return begin.elapsed_time(end) / 1e3, started


def compare(name: str, n: int, cf: float, pairs: int, baseline: Side, ours: Side) -> Row:
    taken = [(device_seconds(baseline), device_seconds(ours)) for _ in range(pairs + 3)][
        3:
    ]  # three to warm up
    ratios = [theirs[0] / mine[0] for theirs, mine in taken]
    low, middle, high = statistics.quantiles(ratios, n=4)
    theirs = statistics.median(pair[0][0] for pair in taken)
    mine = statistics.median(pair[1][0] for pair in taken)
    host = statistics.median(pair[1][1] for pair in taken)
    return Row(name, n, cf, theirs, mine, middle, (low, high), host)


def top_rows(n: int, pairs: int) -> list[Row]:
    step, rows = Step(n), []
    for cf in (100.0, 10.0):
        k = int(n / cf)
        theirs, mine = step.torch_topk(k)[1].abs().sort().values, step.ours(k)[1].abs().sort().values
        assert torch.equal(theirs, mine), "both sides must take the same magnitudes"
        rows.append(
            compare("torch.topk", n, cf, pairs, lambda k=k: step.torch_topk(k), lambda k=k: step.ours(k))  # type: ignore[misc]
        )
        copied = compare("copy", n, cf, pairs, step.copy, lambda k=k: step.ours(k))  # type: ignore[misc]
        share = (12 * n + 8 * k) / (8 * n) * copied.ratio
        rows.append(Row(**{**asdict(copied), "share": share}))
    rows.append(compare("copy / counting", n, 1.0, pairs, step.copy, step.count))
    return rows


def other_rows(n: int, pairs: int) -> list[Row]:
    """Triton's kernels against plain torch on the same GPU."""
    x, k = torch.randn(n, device="cuda"), n // 100
    indices, values = kernels.take_top(x, k)
    packed, out = kernels.pack_positions(indices, n), torch.zeros_like(x)
    scales, codes = kernels.quantize(x, 256, 8, 1)
    works: dict[str, Side] = {
        "scatter-add": lambda: kernels.scatter_add(out, indices, values, 0.5),
        "positions packed": lambda: kernels.pack_positions(indices, n),
        "positions unpacked": lambda: kernels.unpack_positions(packed, k, n),
        "signs packed": lambda: kernels.pack(x >= 0, 1),
        "int8 written": lambda: kernels.quantize(x, 256, 8, 1),
        "int8 read": lambda: kernels.dequantize(scales, codes, n, 256, 8),
        "noise": lambda: kernels.noise(n, 1, x.device),
        "random places": lambda: kernels.distinct(n, k, 1, x.device),
    }

    def on(name: kernels.backend.Choice, work: Side) -> Side:
        def side() -> object:
            kernels.use(name)
            return work()

        return side

    rows = [
        compare(name, n, 100.0, pairs, on("reference", work), on("cuda", work))
        for name, work in works.items()
    ]
    kernels.use("cuda")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=100_000_000, help="elements")
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(
            "benchmarks/cuda.py needs a CUDA GPU, and torch sees none here: run it on a machine that has one"
        )
    torch.cuda.init()
    kernels.use("cuda")
    kernels.warm()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, file=sys.stderr)
    for row in top_rows(options.n, options.pairs) + other_rows(min(options.n, 10_000_000), options.pairs):
        if options.json:
            print(json.dumps(asdict(row)))
            continue
        low, high = row.quartiles
        share = "" if row.share is None else f"   {100 * row.share:.0f} % of the copy's bytes a second"
        print(
            f"{row.name:20} n={row.n:<11,} CF {row.cf:<5g} {1e3 * row.baseline:8.3f} ms -> {1e3 * row.seconds:7.3f} ms"
            f" (host {1e3 * row.host_seconds:.3f})   ratio {row.ratio:6.2f}  ({low:.2f} to {high:.2f}){share}"
        )


if __name__ == "__main__":
    main()
