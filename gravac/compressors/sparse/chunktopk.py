"""Chunked Top-k: sends the largest elements of each chunk, so that every part of the model is heard."""

from dataclasses import replace

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors.base import Bound, Key, Payload, kept_count, to_wire
from gravac.compressors.sparse.selector import PLAIN, Indexed


class ChunkTopK(Indexed):
    """Sends the largest elements of each chunk of 4096: k = floor(n / CF) in all, equally many of each chunk.

    Top-k of a whole bucket takes most elements from the layers with the largest gradients; this takes a fixed share of
    each. Its search needs no histogram of the bucket. ``chunk``: elements of a chunk; chunks are larger if they could
    not keep one element each. Positions are coded as those of Top-k, in about 2 + log2(CF) bits each.

    Biased, contractive: ``‖C(x) - x‖² <= (1 - δ) ‖x‖²`` with δ the smallest share that a chunk keeps, about k/n.
    """

    name = "chunktopk"
    source = "Sarfi et al. 2025, Communication efficient LLM pre-training with SparseLoCo, chunk-wise Top-k"
    traits = replace(PLAIN, nested=False)
    examples: tuple[str, ...] = ("chunk=16",)

    def __init__(self, *, chunk: int = 4096) -> None:
        if chunk < 1:
            raise ValueError(f"{self.name}: chunk={chunk} must be at least 1 element")
        self.chunk = chunk

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        k = kept_count(x.numel(), cf)
        flat = x.detach().float().contiguous()
        places, values = kernels.take_top_of_chunks(flat, k, self._chunks(x.numel(), k))
        values = values if dtype == torch.float32 else to_wire(values, dtype)
        return self._payload(values, places, x.numel(), cf, key)

    def bound(self, numel: int, cf: float) -> Bound:
        k = kept_count(numel, cf)
        chunks = self._chunks(numel, k)
        return Bound(delta=(k // chunks) / -(-numel // chunks))

    def _chunks(self, numel: int, k: int) -> int:
        return min(k, -(-numel // self.chunk))
