"""Exact Top-k: keep the k elements of largest magnitude."""

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, kept, travelling
from gravac.compressors.selector import PLAIN, Indexed
from gravac.kernels import select_top, take_top


class TopK(Indexed):
    """k = floor(n / CF) values and their positions in at most 2 + log2(CF) bits each.

    For float32 that is a wire CF of 8.6 at CF 10 and 728 at CF 1000; with 16-bit values (``topk+bf16``) 15.1 and 1,145.

    Biased, contractive: ``||x - C(x)||² <= (1 - k/n) ||x||²``, never worse than Random-k.
    """

    name = "topk"
    source = "Stich et al. 2018, Sparsified SGD with memory, definition 2.2"
    traits = PLAIN

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        if x.dtype != torch.float32:
            return super().compress(x, cf, key, dtype)
        places, values = take_top(x.contiguous(), kept(x.numel(), cf))  # both in one pass
        values = values if dtype == torch.float32 else travelling(values, dtype)
        return self._payload(values, places, x.numel(), cf, key)

    def choose(self, x: Tensor, cf: float, key: Key) -> Tensor:
        return select_top(x, kept(x.numel(), cf))

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=kept(numel, cf) / numel)
