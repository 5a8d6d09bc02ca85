"""Subtractive dither: rounding at random where every rank knows the draws and subtracts them."""

from torch import Tensor

from gravac.compressors.base import Key, Payload
from gravac.compressors.quantize.dither import Dither
from gravac.kernels import dequantize_subtractive, dither_subtractive


class SubtractiveDither(Dither):
    """``dither`` whose draws are subtracted again when a payload is decoded, which halves the error at equal bytes.

    The draws follow from the seed, the step, the bucket and the rank, so all ranks know them. An element that is a
    fraction f of the way between two levels errs by ``f (1 - f)`` spacings² with ``dither``, and by 1/12 if the draw is
    subtracted. That is more where most elements are close to a level. Each block sends, as the sign of its spacing,
    which of the two it takes: ``dither`` also where an element is zero, so that zeros stay zeros.

    ``levels``, ``spread``, ``block``, ``coding`` and the bound: as ``dither``. With blocks of 64 the error is 6, 14 and
    48 % of normal elements' energy with 7, 5 and 3 levels. Payloads cannot be divided, as draws follow from the place
    in the bucket; so there is no compressed all-reduce.
    """

    name = "dither-subtractive"
    source = (
        "Schuchman 1964, Dither signals and their effect on quantization noise; for gradients: Abdi & Fekri 2019, "
        "Nested dithered quantization for communication reduction in distributed training"
    )

    def round(self, x: Tensor, cf: float, key: Key) -> tuple[Tensor, Tensor]:
        return dither_subtractive(x, self.block, self.level_count(cf), self.spread, key.own_seed())

    def decode(self, payload: Payload) -> Tensor:
        assert payload.key is not None
        spacings, codes = self.unpacked(payload)
        seed, levels = payload.key.own_seed(), self.level_count(payload.cf)
        return dequantize_subtractive(spacings, codes, self.block, levels, seed)

    def block_of(self, cf: float) -> int | None:
        return None
