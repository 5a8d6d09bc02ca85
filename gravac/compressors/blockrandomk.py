"""Block Random-k: one contiguous run of elements, at a place all ranks know."""

from dataclasses import replace

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors.base import Bound, Key, Payload, kept, travelling
from gravac.compressors.randomk import SharedDraw


class BlockRandomK(SharedDraw):
    """k = floor(n / CF) neighbours, going round the end: a copy in place of a gather, and nothing but values sent.

    The start is uniform over *all* n positions. Without going round, the ends would be sent less often than the middle.
    As Random-k: ``E ||x - C(x)||² = (1 - k/n) ||x||²``.
    """

    name = "blockrandomk"
    source = "Xie et al. 2020, CSER, GRBS; Li et al. 2023, ConEF, rbSGD"

    def draw(self, numel: int, cf: float, key: Key, device: torch.device) -> Tensor:
        return kernels.run_places(numel, self.start(numel, key), kept(numel, cf), device)

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        n = x.numel()
        values = kernels.take_run(x, self.start(n, key), kept(n, cf))
        values = values if values.dtype == dtype else travelling(values, dtype)
        return Payload((values,), self.draw(n, cf, key, x.device), n, cf, key)

    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        values = payload.values.to(out.dtype)
        kernels.add_run(out, self._start_of(payload), values, scale * self.weight(payload))

    def inner(self, payload: Payload, x: Tensor) -> float:
        part = kernels.take_run(x, self._start_of(payload), payload.values.numel())
        return self.weight(payload) * kernels.inner(payload.values, part)

    def _start_of(self, payload: Payload) -> int:
        assert payload.key is not None
        return self.start(payload.numel, payload.key)

    @staticmethod
    def start(numel: int, key: Key) -> int:
        """First position sent, in [0, n)."""
        return kernels.run_start(numel, key.shared_seed())


class UnbiasedBlockRandomK(BlockRandomK):
    """Block Random-k times n/k: unbiased, ``E ||x - C(x)||² = (n/k - 1) ||x||²``. Use it without error feedback."""

    name = "blockrandomk-unbiased"
    traits = replace(BlockRandomK.traits, unbiased=True, projection=False)

    def weight(self, payload: Payload) -> float:
        return payload.numel / payload.values.numel()

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(omega=numel / kept(numel, cf) - 1.0)
