"""What a second level costs: both levels and the whole gain curve, against one level and against compressing twice.

It also measures the curve's error, against sorting, on gradients of a real training (``curve_error.py``).
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors import COMPRESSORS, Key
from gravac.compressors.base import Compressor, Payload, kept_count
from gravac_lab.programs.curve_error import accuracy
from gravac_lab.programs.paired import compare, limit
from gravac_lab.programs.process import add_sizes, run_program
from gravac_lab.programs.steps import BenchStep

PUBLISHED = {"topk": 1.83, "dgc": 1.52, "redsync": 1.50, "randomk": 1.64}
"""GraVAC's table 3, 10x and 1000x on V100s: two direct compressions over multi-level, the best of three networks."""
CODECS = ("topk", "dgc", "redsync", "sidco", "randomk", "blockrandomk")
KEY = Key(seed=0, step=0, bucket=0, rank=0)
Levels = Callable[[Tensor, tuple[float, ...]], list[Payload]]


def measured(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield for each n the limit, Top-k's step and each codec; then the curve's error."""
    cfs = (chosen.levels[0], chosen.levels[1])
    for n in chosen.n:
        yield {"limit": limit(n, chosen.pairs)}
        for row in _step(BenchStep(n), n, cfs, chosen.pairs):
            yield {"row": row}
        x = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
        for name in CODECS:
            for row in _codec(COMPRESSORS[name](), x, cfs, chosen.pairs):
                yield {"row": row}
    for row in accuracy(chosen.train_width, chosen.train_steps, chosen.pairs):
        yield {"row": row}


def _step(step: BenchStep, n: int, cfs: tuple[float, float], pairs: int) -> Iterator[dict[str, Any]]:
    k, stronger = (kept_count(n, cf) for cf in cfs)
    row = partial(
        compare, n=n, cf=cfs[0], pairs=pairs, second_cf=cfs[1], ours=lambda: step.two_levels(k, stronger)
    )
    name = "topk step, 2 levels and the curve"
    yield row(name, "1 level", baseline=lambda: step.one_level(k))
    yield row(name, "1 level, twice", baseline=lambda: step.twice(k, stronger))
    yield row(
        name, "torch.topk, twice", baseline=lambda: step.torch_topk(k, stronger), published=PUBLISHED["topk"]
    )


def _codec(codec: Compressor, x: Tensor, cfs: tuple[float, float], pairs: int) -> Iterator[dict[str, Any]]:
    """Compare one codec as the agent calls it: payloads with packed positions."""
    levels = partial(_levels, codec)
    for nested, cf in zip(levels(x, cfs), cfs, strict=True):
        if not torch.equal(nested.pack(), codec.compress(x, cf, KEY, torch.float32).pack()):
            raise AssertionError(f"{codec.name}: levels() differs from compress() at cf={cf:g}")
    row = partial(compare, f"{codec.name}, 2 levels", n=x.numel(), cf=cfs[0], pairs=pairs, second_cf=cfs[1])
    ours, published = lambda: levels(x, cfs), PUBLISHED.get(codec.name)
    yield row("compressing twice", baseline=lambda: _twice(codec, x, cfs), ours=ours, published=published)
    if codec.name == "randomk":
        against, baseline = (
            "torch.randperm, twice",
            lambda: [_permuted(x, kept_count(x.numel(), cf)) for cf in cfs],
        )
        yield row(against, baseline=baseline, ours=ours, published=published)
    elif kernels.active() != "reference" and codec.name in PUBLISHED:
        yield row(
            "twice in plain torch",
            baseline=lambda: _twice(codec, x, cfs),
            ours=ours,
            backends=("reference", kernels.active()),
            published=published,
        )


def _levels(codec: Compressor, x: Tensor, cfs: tuple[float, ...]) -> list[Payload]:
    return codec.levels(x, cfs, KEY, torch.float32)


def _twice(codec: Compressor, x: Tensor, cfs: tuple[float, ...]) -> list[Payload]:
    return [codec.compress(x, cf, KEY, torch.float32) for cf in cfs]


def _permuted(x: Tensor, k: int) -> Tensor:
    """Select random elements as Random-k is usually written."""
    places = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(0))[:k]
    return x.index_select(0, places)


def main() -> None:
    parser = add_sizes(argparse.ArgumentParser(prog="gravac_lab.programs.multilevel", description=__doc__))
    parser.add_argument("--levels", type=float, nargs=2, required=True, help="the weaker CF and the stronger")
    parser.add_argument("--train-width", type=int, required=True, help="width of the LSTM that is trained")
    parser.add_argument("--train-steps", type=int, required=True, help="steps of that training, at each CF")
    run_program(measured, parser.parse_args())


if __name__ == "__main__":
    main()
