"""Floats as they are: every element as float32, bfloat16 or float16, whatever CF is asked for."""

from dataclasses import replace

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors.base import Bound, Compressor, Key, Payload, TensorSpec, to_wire
from gravac.compressors.quantize.quantizer import ROUNDED, Quantizer
from gravac.compressors.sparse.selector import PLAIN
from gravac.kernels.device.rounded import BFLOAT16, FORMATS, Rounding
from gravac.kernels.device.tiled import Values as TiledValues
from gravac.offers import Offer


class Dense(Compressor):
    """Sends every element as it is, exactly: the null codec.

    n values; the wire CF is 1.
    """

    name = "dense"
    source = "the null codec"
    traits = replace(PLAIN, unbiased=True, linear=True)
    offer = Offer(lossless=True)

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        return (TensorSpec(dtype, numel),)

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        return Payload((to_wire(x, dtype).contiguous(),), None, x.numel(), cf, key)

    def narrow(self, payload: Payload, cf: float) -> Payload:
        return replace(payload, cf=cf)

    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        out.add_(payload.parts[0].to(out.dtype), alpha=scale)

    def decode(self, payload: Payload) -> Tensor:
        return payload.parts[0].to(torch.float32, copy=True)

    def _energy(self, payload: Payload) -> kernels.Scalar:
        return kernels.energy(payload.parts[0])

    def inner(self, payload: Payload, x: Tensor) -> kernels.Scalar:
        return kernels.inner(payload.parts[0], x)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=1.0, omega=0.0)


class BF16(Quantizer):
    """Rounds every element to the nearest bfloat16: 2n bytes, whatever CF is asked for.

    The relative error is at most 2^-9 for normal numbers.
    """

    name = "bf16"
    source = "Kalamkar et al. 2019, A study of bfloat16; round to nearest even"
    traits = replace(ROUNDED, unbiased=False)
    offer = Offer(
        plans={"": 2.0},
        decode_ns=0.6,
        sgd={2.0: (0.960, 1.000, 1.000)},
        adam={2.0: (0.996, 1.000, 1.000)},
        lossless=True,
    )
    half = torch.bfloat16
    relative_error = 2.0**-9
    smallest_error = 2.0**-134  # half the step of the smallest numbers

    def kept_values(self) -> TiledValues | None:
        return "bfloat16" if self.half == torch.bfloat16 else None

    def message_rounding(self, cf: float, dtype: torch.dtype) -> Rounding | None:
        return BFLOAT16 if self.half == torch.bfloat16 and dtype in FORMATS else None

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        return (TensorSpec(self.half, numel),)

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        return Payload((to_wire(x, self.half).contiguous(),), None, x.numel(), cf, key)

    def decode(self, payload: Payload) -> Tensor:
        return payload.parts[0].float()

    def block_of(self, cf: float) -> int:
        return 1

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=1 - self.relative_error**2, absolute=numel * self.smallest_error**2)


class FP16(BF16):
    """Rounds every element to the nearest float16: 2n bytes, whatever CF is asked for.

    The relative error is at most 2^-11 between 6e-5 and 65504. Larger elements are sent as 65504 and the rest stays in
    the residual; smaller ones lose digits, which stay there too.
    """

    name = "fp16"
    source = "IEEE 754-2008, binary16; round to nearest even"
    traits = replace(BF16.traits, homogeneous=False)
    offer = Offer(listed={"": 2.0}, decode_ns=0.6, like="bf16", lossless=True)
    half = torch.float16
    relative_error = 2.0**-11
    smallest_error = 2.0**-25
