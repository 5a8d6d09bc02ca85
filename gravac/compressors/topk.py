"""Exact Top-k: keep the k elements of largest magnitude."""

from torch import Tensor

from gravac.compressors.base import Bound, Key, kept
from gravac.compressors.selector import PLAIN, Indexed
from gravac.kernels import select_top


class TopK(Indexed):
    """k = floor(n / CF) values and their int32 positions: 8k bytes for float32, so the wire CF is CF / 2.

    Biased, contractive: ``||x - C(x)||² <= (1 - k/n) ||x||²``, never worse than Random-k.
    """

    name = "topk"
    source = "Stich et al. 2018, Sparsified SGD with memory, definition 2.2"
    traits = PLAIN

    def choose(self, x: Tensor, cf: float, key: Key) -> Tensor:
        return select_top(x, kept(x.numel(), cf))

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=kept(numel, cf) / numel)
