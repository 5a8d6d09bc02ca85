"""Block Random-k: one contiguous run of elements, at a place all ranks know."""

from dataclasses import replace

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, kept
from gravac.compressors.randomk import SharedDraw


class BlockRandomK(SharedDraw):
    """k = floor(n / CF) neighbours, going round the end: a copy in place of a gather, and nothing but values sent.

    The start is uniform over *all* n positions. Without going round, the ends would be sent less often than the middle.
    As Random-k: ``E ||x - C(x)||² = (1 - k/n) ||x||²``.
    """

    name = "blockrandomk"
    source = "Xie et al. 2020, CSER, GRBS; Li et al. 2023, ConEF, rbSGD"

    def draw(self, numel: int, cf: float, key: Key, device: torch.device) -> Tensor:
        return (torch.arange(kept(numel, cf), device=device) + self.start(numel, key)) % numel

    @staticmethod
    def start(numel: int, key: Key) -> int:
        """First position sent, in [0, n)."""
        return key.shared_seed() % numel


class UnbiasedBlockRandomK(BlockRandomK):
    """Block Random-k times n/k: unbiased, ``E ||x - C(x)||² = (n/k - 1) ||x||²``. Use it without error feedback."""

    name = "blockrandomk-unbiased"
    traits = replace(BlockRandomK.traits, unbiased=True, projection=False)

    def weight(self, payload: Payload) -> float:
        return payload.numel / payload.values.numel()

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(omega=numel / kept(numel, cf) - 1.0)
