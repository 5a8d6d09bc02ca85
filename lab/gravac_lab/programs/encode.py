"""What encoding costs on one core: Top-k with error feedback against ``torch.topk``, kernels against plain torch."""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors import Key, build
from gravac.compressors.base import Compressor, Layout, kept_count
from gravac_lab.programs.paired import Side, compare, limit
from gravac_lab.programs.process import add_sizes, run_program
from gravac_lab.programs.steps import BenchStep

CFS = (100.0, 10.0)
STACK_CFS = (5.0, 16.6)
OTHERS_MOST = 1_000_000
"""Most elements for kernels other than Top-k, because plain torch is slow."""


def measured(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield for each n the limit and Top-k at each CF against two baselines, and 2-bit values; then other kernels."""
    for n in chosen.n:
        yield {"limit": limit(n, chosen.pairs)}
        step = BenchStep(n)
        for cf in CFS:
            for row in _topk(step, n, cf, chosen.pairs):
                yield {"row": row}
        for cf in STACK_CFS:
            for row in _stacks(n, cf, chosen.pairs):
                yield {"row": row}
    if kernels.active() != "reference":
        for row in _others(min(max(chosen.n), OTHERS_MOST), chosen.pairs):
            yield {"row": row}


def _write(codec: Compressor, x: Tensor, cf: float, key: Key) -> Tensor:
    return codec.compress(x, cf, key, torch.float32).pack()


def _read(codec: Compressor, layout: Layout, message: Tensor, key: Key, out: Tensor) -> None:
    codec.decompress(layout.unpack(message, key), out, 0.5)


def _topk(step: BenchStep, n: int, cf: float, pairs: int) -> Iterator[dict[str, Any]]:
    k = kept_count(n, cf)
    ways: dict[str, Callable[[], Tensor]] = {"topk, sizes counted": lambda: step.one_level(k)[0]}
    if kernels.active() != "reference":
        ways["topk"] = lambda: step.guided(k)[0]
    # Of equal elements, ours selects the first ones and torch any.
    theirs = step.size[step.torch_topk(k).long()].sort().values
    for way in ways.values():
        if not torch.equal(theirs, step.size[way().long()].sort().values):
            raise AssertionError("the two sides select different elements")
    baselines: dict[str, Side] = {
        "torch.topk, gather, residual": lambda: step.torch_topk(k),
        "read, add, write": step.read_add_write,
    }
    for name, way in ways.items():
        for against, baseline in baselines.items():
            yield compare(name, against, n, cf, pairs, baseline=baseline, ours=way)


def _stacks(n: int, cf: float, pairs: int) -> Iterator[dict[str, Any]]:
    x = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    out, key = torch.zeros(n, dtype=torch.float32), Key(0, 0, 0, 0)
    written: list[Side] = []
    read: list[Side] = []
    for name in ("topk+bf16", "topk+twobit"):
        codec = build(name)
        layout = codec.layout(n, cf, torch.float32)
        write = partial(_write, codec, x, cf, key)
        written.append(write)
        read.append(partial(_read, codec, layout, write(), key, out))
    for what, (baseline, ours) in (("written", written), ("read", read)):
        yield compare(f"topk+twobit {what}", f"topk+bf16 {what}", n, cf, pairs, baseline=baseline, ours=ours)


def _others(n: int, pairs: int) -> Iterator[dict[str, Any]]:
    x, k = (
        torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float32),
        kept_count(n, 100.0),
    )
    indices, values = kernels.take_top(x, k)
    level = float(values.abs().amin())
    packed = kernels.pack_positions(indices, n)
    scales, codes = kernels.quantize(x, 256, 8, 1)
    fours = kernels.quantize(x, 32, 4, 1)
    spacings, fifteen = kernels.quantize_nearest(x, 64, 15)
    wide, three = kernels.quantize_nearest(x, 64, 3)
    digits = {16: kernels.pack_digits(fifteen, 16), 3: kernels.pack_digits(three, 3)}
    out = torch.zeros(n, dtype=torch.float32)
    twos = kernels.quantize_two_bits(x, 128)
    works: dict[str, Side] = {
        "spectrum pass": lambda: kernels.tally(x),
        "all above a threshold": lambda: kernels.take_above(x, level),
        "scatter-add": lambda: kernels.scatter_add(out, indices, values, 0.5),
        "positions packed": lambda: kernels.pack_positions(indices, n),
        "positions unpacked": lambda: kernels.unpack_positions(packed, k, n),
        "signs packed": lambda: kernels.pack(x >= 0, 1),
        "int8 written": lambda: kernels.quantize(x, 256, 8, 1),
        "int8 read": lambda: kernels.dequantize(scales, codes, n, 256, 8),
        "int4 written": lambda: kernels.quantize(x, 32, 4, 1),
        "int4 read": lambda: kernels.dequantize(*fours, n, 32, 4),
        "nearest of 15 rounded": lambda: kernels.quantize_nearest(x, 64, 15),
        "nearest of 15 read": lambda: kernels.dequantize_nearest(spacings, fifteen, 64, 15),
        "nearest of 3 rounded": lambda: kernels.quantize_nearest(x, 64, 3),
        "nearest of 3 read": lambda: kernels.dequantize_nearest(wide, three, 64, 3),
        "block signs rounded": lambda: kernels.quantize_nearest(x, 64, 2),
        "two bits written": lambda: kernels.quantize_two_bits(x, 128),
        "two bits read": lambda: kernels.dequantize_two_bits(*twos, n, 128),
        "digits of base 16 packed": lambda: kernels.pack_digits(fifteen, 16),
        "digits of base 16 unpacked": lambda: kernels.unpack_digits(digits[16], n, 16),
        "digits of base 3 packed": lambda: kernels.pack_digits(three, 3),
        "digits of base 3 unpacked": lambda: kernels.unpack_digits(digits[3], n, 3),
        "largest of each chunk": lambda: kernels.take_top_of_chunks(x, k, max(1, n // 4096)),
        "noise": lambda: kernels.noise(n, 1, torch.device("cpu")),
        "random places": lambda: kernels.distinct(n, k, 1),
    }
    for name, work in works.items():
        backends = ("reference", kernels.active())
        yield compare(name, "plain torch", n, 100.0, pairs, baseline=work, ours=work, backends=backends)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="gravac_lab.programs.encode", description=__doc__)
    run_program(measured, add_sizes(parser).parse_args())
