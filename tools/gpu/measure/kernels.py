"""Top-k with error feedback against ``torch.topk`` and the memory's own speed, and the kernels against plain torch.

All buffers are kept between steps on both sides. The limit is a copy from one tensor to another, bytes read and bytes
written. Top-k's share of it counts the fewest bytes that anyone can move: gradient and residual read, the new residual
written, k values and places written.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from gravac import kernels
from tools.gpu.figures import Figure
from tools.gpu.measure.timing import Side, compare

SIZES = (6_500_000, 100_000_000, 268_000_000)
OTHERS_SIZE = 10_000_000
"""Elements for kernels other than Top-k, because plain torch needs much memory."""
TARGET_SIZE = 100_000_000
"""The size that the targets below are for."""
LEAST_RATIO, LEAST_SHARE = 5.0, 30.0
"""Against ``torch.topk``, and in percent of the copy's bytes a second."""


class Step:
    """One gradient, its residual, and every buffer a step needs."""

    def __init__(self, n: int, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(0)
        self.device, self.n = device, n
        self.g = torch.randn(n, generator=generator, device=device)
        self.e = torch.randn(n, generator=generator, device=device) / 2
        self.p, self.size = torch.empty_like(self.g), torch.empty_like(self.g)
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}

    def copy(self) -> None:
        """Copy the gradient."""
        self.p.copy_(self.g)

    def torch_topk(self, k: int) -> tuple[Tensor, Tensor]:
        """Add, take the k largest with ``torch.topk``, and leave the residual in ``p``."""
        torch.add(self.g, self.e, out=self.p)
        torch.abs(self.p, out=self.size)
        places = torch.topk(self.size, k, sorted=False).indices
        values = self.p[places]
        self.p[places] = 0.0
        return places, values

    def count(self) -> kernels.Tally:
        """Add and count sizes."""
        return kernels.tally(self.g, self.e, out=self.p)

    def ours(self, k: int) -> tuple[Tensor, Tensor]:
        """Do the same as ``torch_topk`` with our kernels."""
        hint = self.count()
        if k not in self._buffers:
            empty = torch.empty(k, dtype=torch.int32, device=self.device), torch.empty(k, device=self.device)
            self._buffers[k] = empty
        indices, values = self._buffers[k]
        return kernels.take_top(self.p, k, hint, clear=True, indices=indices, values=values)


def topk(device: torch.device, sizes: tuple[int, ...] = SIZES, pairs: int = 21) -> Iterator[Figure]:
    """Measure Top-k 1 % and 10 % of each size, and counting alone."""
    for n in sizes:
        step = Step(n, device)
        for cf in (100.0, 10.0):
            yield from _at(step, cf, pairs)
        counted = compare(device, pairs, step.copy, step.count)
        low, ratio, high = counted.ratios
        yield Figure(name=f"copy against counting, n = {n:,}", value=ratio, unit="x", low=low, high=high)
        del step


def _at(step: Step, cf: float, pairs: int) -> Iterator[Figure]:
    n, k = step.n, int(step.n / cf)
    theirs, mine = step.torch_topk(k)[1].abs().sort().values, step.ours(k)[1].abs().sort().values
    if not torch.equal(theirs, mine):
        raise AssertionError(f"n={n}, k={k}: the two sides take different magnitudes")
    del theirs, mine
    what = f"Top-k {100 / cf:g} %, n = {n:,}"
    asked = n == TARGET_SIZE and cf == 100.0
    found = compare(step.device, pairs, lambda: step.torch_topk(k), lambda: step.ours(k))
    low, ratio, high = found.ratios
    least = LEAST_RATIO if asked else None
    yield Figure(name=f"{what}: torch.topk / ours", value=ratio, unit="x", low=low, high=high, least=least)
    yield Figure(name=f"{what}: torch.topk, gather, residual", value=found.baseline, unit="s")
    yield Figure(name=f"{what}: ours", value=found.ours, unit="s")
    yield Figure(name=f"{what}: ours, host", value=found.host, unit="s")
    copied = compare(step.device, pairs, step.copy, lambda: step.ours(k))
    yield Figure(name=f"{what}: bandwidth of a copy", value=8 * n / copied.baseline, unit="B/s")
    low, share, high = (100 * (12 * n + 8 * k) / (8 * n) * ratio for ratio in copied.ratios)
    least = LEAST_SHARE if asked else None
    name = f"{what}: share of the copy's bandwidth, fewest bytes"
    yield Figure(name=name, value=share, unit="%", low=low, high=high, least=least)


def others(device: torch.device, n: int = OTHERS_SIZE, pairs: int = 21) -> Iterator[Figure]:
    """Measure the compiled kernels against plain torch on the same device."""
    x, k = torch.randn(n, generator=torch.Generator(device).manual_seed(0), device=device), n // 100
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
        "largest of each chunk": lambda: kernels.take_top_of_chunks(x, k, max(1, n // 4096)),
        "inner product": lambda: kernels.product(x, x),
    }
    compiled: Literal["cuda", "auto"] = "cuda" if device.type == "cuda" else "auto"
    chosen = (lambda: kernels.use("reference")), (lambda: kernels.use(compiled))
    try:
        for name, work in works.items():
            found = compare(device, pairs, work, work, before=chosen)
            low, ratio, high = found.ratios
            what = f"{name}, n = {n:,}"
            yield Figure(name=f"{what}: plain torch / ours", value=ratio, unit="x", low=low, high=high)
            yield Figure(name=f"{what}: ours", value=found.ours, unit="s")
    finally:
        kernels.use(compiled)
