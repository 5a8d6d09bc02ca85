"""Count sketches: elements are summed with random signs in buckets that all ranks share. Sketches add."""

from dataclasses import replace

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, TensorSpec, kept_count, to_wire
from gravac.compressors.quantize.quantizer import ROUNDED, Quantizer
from gravac.kernels import placed, select_top


class CountSketch(Quantizer):
    """Sums elements with random signs in k = floor(n / CF) buckets; decoding averages over rows.

    ``rows``: number of hashes, each into w = k / rows buckets. The hash is *balanced*: a permutation modulo w, so that
    bucket loads differ by one at most. Then, over a fresh key, ``E‖C(x) - x‖² = Σ_b c_b (c_b - 1) / (n · rows) · ‖x‖²``
    with c_b the loads: about n/k - 1, and 0 once w >= n. With a fixed key, which an error memory must have, it is a
    fixed linear map. More rows do not help here.
    """

    name = "countsketch"
    source = "Charikar et al. 2002, Finding frequent items; Li et al. 2023, ConEF, count sketch"
    traits = replace(ROUNDED, linear=True)
    examples: tuple[str, ...] = ("rows=3",)

    def __init__(self, *, rows: int = 1) -> None:
        if rows < 1:
            raise ValueError(f"{self.name}: rows={rows} must be at least 1")
        self.rows = rows

    def width(self, numel: int, cf: float) -> int:
        """Return the buckets per row, w."""
        return max(1, kept_count(numel, cf) // self.rows)

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        return (TensorSpec(dtype, self.rows * self.width(numel, cf)),)

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        width = self.width(x.numel(), cf)
        table = torch.zeros(self.rows, width, device=x.device, dtype=torch.float32)
        # The random signs make the other elements of a bucket cancel on average, so that estimates are unbiased.
        for row, (bucket, sign) in enumerate(self.hashes(x.numel(), width, key, x.device)):
            table[row].index_add_(0, bucket, sign * x.float())
        return Payload((to_wire(table.flatten(), dtype),), None, x.numel(), cf, key)

    def decode(self, payload: Payload) -> Tensor:
        return self.estimates(payload).mean(0)

    def estimates(self, payload: Payload) -> Tensor:
        """Return the estimate of each row for each element, float32 of shape ``(rows, n)``."""
        assert payload.key is not None
        width = payload.values.numel() // self.rows
        table = payload.values.float().view(self.rows, width)
        hashes = self.hashes(payload.numel, width, payload.key, table.device)
        return torch.stack([sign * table[row][bucket] for row, (bucket, sign) in enumerate(hashes)])

    def hashes(self, numel: int, width: int, key: Key, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        """Return, per row, the bucket (int64) and the sign (±1, float32) of each element."""
        generator = torch.Generator()  # CPU on purpose: the same draw on ranks with different devices
        generator.manual_seed(key.shared_seed())
        found = []
        for _ in range(self.rows):
            bucket = torch.randperm(numel, generator=generator, device="cpu") % width
            sign = torch.randint(2, (numel,), generator=generator, device="cpu").float() * 2.0 - 1.0
            found.append((placed(bucket, device), placed(sign, device)))
        return found

    def bound(self, numel: int, cf: float) -> Bound:
        low, more = divmod(numel, self.width(numel, cf))
        collisions = more * (low + 1) * low + (self.width(numel, cf) - more) * low * max(0, low - 1)
        return Bound(omega=collisions / (numel * self.rows))


class MedianCountSketch(CountSketch):
    """A count sketch decoded by the median over an odd number of rows.

    Unbiased too, and a few large elements disturb fewer of the others. It is not linear and cannot be all-reduced, so
    each rank's sketch is decoded by itself.
    """

    name = "countsketch-median"
    traits = replace(ROUNDED, linear=False)
    examples: tuple[str, ...] = ("rows=5",)

    def __init__(self, *, rows: int = 3) -> None:
        if rows < 1 or rows % 2 == 0:
            raise ValueError(f"{self.name}: rows={rows} must be odd, so that there is a median")
        super().__init__(rows=rows)

    def decode(self, payload: Payload) -> Tensor:
        estimates = self.estimates(payload)
        median = estimates.median(0).values
        return torch.where(estimates.isfinite().all(0), median, torch.nan)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound()


class HeavyHitters(MedianCountSketch):
    """Decodes only the largest median estimates of a count sketch: finds a few elements that stand out.

    ``hitters``: how many, w / 10 by default. It is useless on dense data, as every sketch far smaller than n is.
    """

    name = "countsketch-heavy"
    source = "Charikar et al. 2002, Finding frequent items; Ivkin et al. 2019, SketchedSGD"
    traits = replace(ROUNDED, unbiased=False)
    examples: tuple[str, ...] = ("hitters=3",)

    def __init__(self, *, rows: int = 5, hitters: int | None = None) -> None:
        if hitters is not None and hitters < 1:
            raise ValueError(f"{self.name}: hitters={hitters} must be at least 1")
        super().__init__(rows=rows)
        self.hitters = hitters

    def decode(self, payload: Payload) -> Tensor:
        estimates = super().decode(payload)
        width = payload.values.numel() // self.rows
        found = select_top(estimates, min(payload.numel, self.hitters or max(1, width // 10)))
        return torch.zeros_like(estimates).index_copy_(0, found, estimates[found])
