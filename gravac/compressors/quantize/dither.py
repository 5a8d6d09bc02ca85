"""Dither: every element is rounded at random to a few equally spaced levels of its block, and clipped."""

import math
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload
from gravac.compressors.quantize.nearest import Coding, Nearest
from gravac.compressors.quantize.quantizer import Quantizer
from gravac.kernels import GRIDS, dequantize_subtractive, dither, dither_subtractive
from gravac.offers import Offer


class Dither(Nearest):
    """Rounds every element at random to one of the two levels around it, and clips what lies beyond the outermost.

    With ``nearest``, error feedback must add up a small element for many steps before it is sent. Here it is sent at
    once, on average. With SGD and momentum this loses less than ``nearest``, with Adam more. The levels are further
    apart than those of ``nearest``, so few elements are clipped. QSGD clips none, so with few levels its error is
    larger. The bytes are those of ``nearest``.

    ``levels``: 39, 15, 7, 5 or 3; by default the CF asked for decides. ``spread``: the spacing as a multiple of that of
    ``nearest``; it is never wider than needed to clip no element. ``block``: elements that share a spacing, B. ``E‖C(x)
    - x‖² <= (1 + 1.01 √B/s) ‖x‖²`` with s levels on each side of zero. With blocks of 64: 0.3, 2, 13, 29 and 94 % of
    normal elements' energy. ``coding``: as in ``nearest``; with ``huffman``, the wire CF of normal elements in blocks
    of 64 is 6.3, 8.8, 12.8, 16 or 23.3.
    """

    name = "dither"
    source = "Alistarh et al. 2017, QSGD, §3.1, for the rounding; Wen et al. 2017, TernGrad, §4, for clipping before it"
    offer = Offer(
        plans={
            "levels=7": 10.1,
            "levels=5": 11.8,
            "levels=3": 17.3,
            "levels=7,coding=huffman": 10.1,
            "levels=5,coding=huffman": 11.8,
        },
        sgd={10.1: (0.993, 1.000, 1.000), 17.3: (0.987, 0.993, 1.000)},
        adam={10.1: (0.759, 0.848, 0.943), 17.3: (0.269, 0.496, 0.720)},
        random=True,
        averages_out=True,
    )
    examples: tuple[str, ...] = (
        "levels=15",
        "levels=7,block=7",
        "levels=5",
        "levels=3",
        "levels=3,spread=9",
        "levels=5,coding=huffman",
    )
    ladder = tuple(levels for levels, grid in GRIDS.items() if grid.reaches)
    normal_bits: ClassVar[Mapping[int, float]] = {39: 4.96, 15: 3.53, 7: 2.38, 5: 1.89, 3: 1.26}

    def __init__(
        self, *, levels: int | None = None, spread: float = 2.0, block: int = 64, coding: Coding = "digits"
    ) -> None:
        super().__init__(levels=levels, block=block, coding=coding)
        if not (spread > 0 and math.isfinite(spread)):
            raise ValueError(f"{self.name}: spread={spread} must be above 0 and finite, such as 2")
        self.spread = spread

    def round(self, x: Tensor, cf: float, key: Key, sums: Tensor) -> tuple[Tensor, Tensor]:
        return dither(x, self.block, self.level_count(cf), self.spread, key.own_seed())

    def block_of(self, cf: float) -> int | None:
        return self.block if self.level_count(cf) > 3 else None  # of 3 levels, the error is too large

    def bound(self, numel: int, cf: float) -> Bound:
        """A spacing d is at most 1.01/s of the block's largest magnitude. An element's expected squared error is at
        most ``|x| d``, or ``x²`` where it is clipped; and ``Σ|x| <= √B ‖x‖`` in a block.
        """
        steps = GRIDS[self.level_count(cf)].steps
        return Bound(omega=1.0 + 1.01 * math.sqrt(min(numel, self.block)) / steps)


class SubtractiveDither(Dither):
    """Rounds as ``dither`` does, and subtracts the draws when it decodes, which halves the error at equal bytes.

    The draws follow from the seed, the step, the bucket and the rank, so all ranks know them. An element that is a
    fraction f of the way between two levels errs by ``f (1 - f)`` spacings² with ``dither``, and by 1/12 if the draw is
    subtracted. The second is larger if most elements are close to a level. So each block chooses one of the two, and
    sends its choice as the sign of its spacing. A block with a zero chooses ``dither``, so that zeros stay zeros.

    ``levels``, ``spread``, ``block``, ``coding`` and the bound: as ``dither``. With blocks of 64 the error is 6, 14 and
    48 % of normal elements' energy with 7, 5 and 3 levels. A payload cannot be divided, because draws follow from the
    position in the bucket. So a compressed all-reduce is not possible.
    """

    name = "dither-subtractive"
    source = (
        "Schuchman 1964, Dither signals and their effect on quantization noise; for gradients: Abdi & Fekri 2019, "
        "Nested dithered quantization for communication reduction in distributed training"
    )
    offer = Offer(
        plans={"levels=3": 17.3, "levels=3,coding=huffman": 17.3},
        listed={"levels=7": 10.1, "levels=5": 11.8},
        sgd={17.3: (0.940, 0.984, 1.000)},
        adam={
            10.1: (0.755, 0.879, 0.973),
            11.8: (0.709, 0.817, 0.954),
            17.3: (0.340, 0.684, 0.855),
        },
        random=True,
    )

    def round(self, x: Tensor, cf: float, key: Key, sums: Tensor) -> tuple[Tensor, Tensor]:
        return dither_subtractive(x, self.block, self.level_count(cf), self.spread, key.own_seed())

    def decode(self, payload: Payload) -> Tensor:
        assert payload.key is not None
        spacings, codes = self.unpacked(payload)
        seed, levels = payload.key.own_seed(), self.level_count(payload.cf)
        return dequantize_subtractive(spacings, codes, self.block, levels, seed)

    decompress = Quantizer.decompress
    remove = Quantizer.remove

    def block_of(self, cf: float) -> int | None:
        return None
