"""Dense: the null codec, exact. Sends every element whatever CF is asked."""

from dataclasses import replace

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors.base import Bound, Compressor, Key, Part, Payload, travelling
from gravac.compressors.sparse.selector import PLAIN


class Dense(Compressor):
    """n values; the wire CF is 1."""

    name = "dense"
    source = "the null codec"
    traits = replace(PLAIN, unbiased=True, linear=True)

    def layout(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[Part, ...]:
        return (Part(dtype, numel),)

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        return Payload((travelling(x, dtype).contiguous(),), None, x.numel(), cf, key)

    def narrow(self, payload: Payload, cf: float) -> Payload:
        return replace(payload, cf=cf)

    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        out.add_(payload.values.to(out.dtype), alpha=scale)

    def decode(self, payload: Payload) -> Tensor:
        return payload.values.to(torch.float32, copy=True)

    def energy(self, payload: Payload) -> float:
        return kernels.energy(payload.values)

    def inner(self, payload: Payload, x: Tensor) -> float:
        return kernels.inner(payload.values, x)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=1.0, omega=0.0)
