"""Top-k with error feedback against ``torch.topk`` and the memory's own speed, and whole messages against the latter.

All buffers are kept between steps on both sides. The limit is a copy from one tensor to another, bytes read and bytes
written. Top-k's share of it counts the fewest bytes that anyone can move: gradient and residual read, the new residual
written, k values and places written.
"""

from collections.abc import Iterator
from typing import get_args

import torch
from torch import Tensor

from gravac import kernels
from gravac.kernels.device import owned, step_sums, tiled
from tools.gpu.figures import Figure
from tools.gpu.measure.timing import compare

SIZES = (6_500_000, 100_000_000)
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


def whole_messages(device: torch.device, n: int, pairs: int) -> Iterator[Figure]:
    """Measure encoding and decoding of a bucket in one message, of 1 % and of a sixteenth of it."""
    generator = torch.Generator(device).manual_seed(0)
    g = torch.randn(n, generator=generator, device=device, dtype=torch.float32)
    e, p, out = (torch.zeros_like(g) for _ in range(3))
    row = torch.zeros(step_sums.ROW, dtype=torch.float64, device=device)
    counts = torch.ones((), dtype=torch.bool, device=device)
    for values in get_args(tiled.Values):
        for cf in (100.0, 16.6):
            layout, what = (
                tiled.TiledLayout(n, int(n / cf), values),
                f"whole message, {values}, CF {cf:g}, n = {n:,}",
            )
            for ranks in (2, 16):
                buffers = tiled.TiledBuffers(layout, device)
                group = tiled.TiledGroup([buffers], ranks)
                step = tiled.TiledStep(buffers, g, out, e, p, row)
                tiled.first_level(buffers, g, None)

                def encode(group: tiled.TiledGroup = group, step: tiled.TiledStep = step) -> None:
                    # What decoding leaves ready for the next step.
                    step.buffers.control.zero_()
                    step.buffers.bins.zero_()
                    tiled.encode(group, [step])

                def decode(group: tiled.TiledGroup = group, step: tiled.TiledStep = step) -> None:
                    tiled.decode(group, counts, [step], 0)

                encode()
                group.arrived.copy_(group.message.expand(ranks, -1))
                works = [("decoded", decode)] if ranks > 2 else [("encoded", encode), ("decoded", decode)]
                for name, work in works:
                    found = compare(device, pairs, lambda: p.copy_(g), work)
                    of = f"{what}: {name}" + (f", {ranks} ranks" if name == "decoded" else "")
                    yield Figure(name=of, value=found.ours, unit="s")
                    yield Figure(name=f"{of}, host", value=found.host, unit="s")
                    low, share, high = (1 / ratio for ratio in reversed(found.ratios))
                    yield Figure(name=f"{of} / a copy", value=share, unit="x", low=low, high=high)


def owned_messages(device: torch.device, n: int, pairs: int) -> Iterator[Figure]:
    """Measure what a bucket takes under ``owners``: messages to all owners, the sums of what arrives, and the mean."""
    generator = torch.Generator(device).manual_seed(0)
    g = torch.randn(n, generator=generator, device=device, dtype=torch.float32)
    e, p, out = (torch.zeros_like(g) for _ in range(3))
    row = torch.zeros(step_sums.ROW, dtype=torch.float64, device=device)
    counts = torch.ones((), dtype=torch.bool, device=device)
    for ranks in (2, 16, 64):
        tile = owned.tile_of(n, ranks)
        if tile is None:
            continue
        # Whole rows: a message that is passed off as one to another owner has no place that does not exist there.
        count = n - n % (ranks * tile)
        layout = owned.OwnedLayout(count, int(count / 16.6) // ranks, "twobit", ranks, 0, tile)
        buffers = owned.OwnedBuffers(layout, 0, device)
        group = owned.OwnedGroup([buffers], ranks)
        step = tiled.TiledStep(buffers, g[:count], out[:count], e[:count], p[:count], row)
        owned.first_level(buffers, g[:count], None)
        owned.encode(group, [step])
        sent = group.message.clone()  # from all ranks as to one of them, which is not their own

        def exchange(
            ranks: int = ranks,
            group: owned.OwnedGroup = group,
            step: tiled.TiledStep = step,
            sent: Tensor = sent,
        ) -> None:
            owned.encode(group, [step])
            group.arrived.copy_(sent[1].expand(ranks, -1))
            owned.add_up(group, [step])
            group.arrived.copy_(group.message)
            owned.decode(group, counts, [step])

        found = compare(device, pairs, lambda: p.copy_(g), exchange)
        of = f"owners, twobit, CF 16.6, n = {count:,}: exchanged, {ranks} ranks"
        yield Figure(name=of, value=found.ours, unit="s")
        yield Figure(name=f"{of}, host", value=found.host, unit="s")
        low, share, high = (1 / ratio for ratio in reversed(found.ratios))
        yield Figure(name=f"{of} / a copy", value=share, unit="x", low=low, high=high)
