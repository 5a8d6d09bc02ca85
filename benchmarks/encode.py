"""What encoding costs on one core: Top-k with error feedback against torch.topk, other kernels against plain torch.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/encode.py [--n 10000000] [--pairs 15] [--json]

Each pair runs the two sides one after the other; ratios are of pairs, medians with quartiles. Seconds are CPU time of
the thread, because neighbours on a shared machine take turns with the longer side more often than with the shorter.
Buffers are kept between steps on both sides: fresh memory costs more than the work done in it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors.base import kept
from gravac.spectrum import Spectrum

Side = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    n: int
    cf: float
    baseline: float
    """CPU seconds of the other side, median."""
    seconds: float
    """Ours, median."""
    ratio: float
    """Baseline / ours, median over pairs: above 1, ours is faster."""
    quartiles: tuple[float, float]


def compare(name: str, n: int, cf: float, pairs: int, baseline: Side, ours: Side) -> Row:
    taken = [(cpu_seconds(baseline), cpu_seconds(ours)) for _ in range(pairs + 2)][2:]  # two to warm up
    ratios = [theirs / mine for theirs, mine in taken]
    low, middle, high = statistics.quantiles(ratios, n=4)
    theirs, mine = (statistics.median(side) for side in zip(*taken, strict=True))
    return Row(name, n, cf, theirs, mine, middle, (low, high))


def cpu_seconds(side: Side) -> float:
    begun = time.thread_time()
    side()
    return time.thread_time() - begun


class Step:
    """One gradient, its residual, and every buffer a step needs."""

    def __init__(self, n: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.g, self.e = torch.randn(n, generator=generator), torch.randn(n, generator=generator) / 2
        self.p, self.size = torch.empty(n), torch.empty(n)
        self.buffers: dict[int, tuple[Tensor, Tensor]] = {}

    def read_add_write(self) -> None:
        torch.add(self.g, self.e, out=self.p)

    def torch_topk(self, k: int) -> tuple[Tensor, Tensor]:
        torch.add(self.g, self.e, out=self.p)
        torch.abs(self.p, out=self.size)
        places = torch.topk(self.size, k, sorted=False).indices
        values = self.p[places]
        self.p[places] = 0.0
        return places, values

    def one_level(self, k: int) -> tuple[Tensor, Tensor, kernels.Tally]:
        counted = kernels.tally(self.g, self.e, out=self.p)
        indices, values = self.buffers.setdefault(k, (torch.empty(k, dtype=torch.int32), torch.empty(k)))
        kernels.take_top(self.p, k, counted, clear=True, indices=indices, values=values)
        return indices, values, counted

    def two_levels(self, k: int, stronger: int) -> None:
        _, values, counted = self.one_level(k)
        places, fewer = self.buffers.setdefault(
            -stronger, (torch.empty(stronger, dtype=torch.int32), torch.empty(stronger))
        )
        kernels.take_top(values, stronger, counted, indices=places, values=fewer)
        Spectrum.of(counted).curve()

    def with_curve(self, k: int) -> None:
        Spectrum.of(self.one_level(k)[2]).curve()


def main_rows(n: int, pairs: int) -> list[Row]:
    step, rows = Step(n), []
    for cf in (100.0, 10.0):
        k = kept(n, cf)
        sent = step.torch_topk(k)[0].sort().values
        assert torch.equal(step.one_level(k)[0], sent.int()), "the two sides must choose alike"
        rows.append(
            compare(
                "torch.topk",
                n,
                cf,
                pairs,
                lambda k=k: step.torch_topk(k),  # type: ignore[misc]
                lambda k=k: step.one_level(k),  # type: ignore[misc]
            )
        )
        rows.append(
            compare("read-add-write", n, cf, pairs, step.read_add_write, lambda k=k: step.one_level(k))  # type: ignore[misc]
        )
    ten, hundred = kept(n, 10.0), kept(n, 100.0)
    one = lambda: step.one_level(ten)  # noqa: E731
    rows.append(
        compare("one level / two and the curve", n, 10.0, pairs, one, lambda: step.two_levels(ten, hundred))
    )
    rows.append(compare("one level / the curve too", n, 10.0, pairs, one, lambda: step.with_curve(ten)))
    return rows


def on(name: kernels.backend.Choice, work: Side) -> Side:
    def side() -> object:
        kernels.use(name)
        return work()

    return side


def other_rows(n: int, pairs: int) -> list[Row]:
    """Compiled against plain torch, a million elements."""
    n = min(n, 1_000_000)
    x, k = torch.randn(n, generator=torch.Generator().manual_seed(0)), n // 100
    indices, values = kernels.take_top(x, k)
    packed = kernels.pack_positions(indices, n)
    scales, codes = kernels.quantise(x, 256, 8, 1)
    out = torch.zeros(n)
    works: dict[str, Side] = {
        "spectrum pass": lambda: kernels.tally(x),
        "scatter-add": lambda: kernels.scatter_add(out, indices, values, 0.5),
        "positions packed": lambda: kernels.pack_positions(indices, n),
        "positions unpacked": lambda: kernels.unpack_positions(packed, k, n),
        "signs packed": lambda: kernels.pack(x >= 0, 1),
        "int8 written": lambda: kernels.quantise(x, 256, 8, 1),
        "int8 read": lambda: kernels.dequantise(scales, codes, n, 256, 8),
        "noise": lambda: kernels.noise(n, 1, torch.device("cpu")),
        "random places": lambda: kernels.distinct(10 * n, k, 1),
    }
    rows = [
        compare(name, n, 100.0, pairs, on("reference", work), on("cpu", work)) for name, work in works.items()
    ]
    kernels.use("auto")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=10_000_000, help="elements")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kernels.use("cpu")
    rows = main_rows(options.n, options.pairs)
    rows += other_rows(options.n, options.pairs)
    for row in rows:
        if options.json:
            print(json.dumps(asdict(row)))
        else:
            low, high = row.quartiles
            print(
                f"{row.name:30} n={row.n:<10,} CF {row.cf:<5g} {1e3 * row.baseline:8.2f} ms -> "
                f"{1e3 * row.seconds:7.2f} ms   ratio {row.ratio:6.2f}  ({low:.2f} to {high:.2f})"
            )


if __name__ == "__main__":
    main()
