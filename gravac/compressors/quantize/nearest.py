"""Nearest: every element becomes the nearest of a few equally spaced levels of its block."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, TensorSpec
from gravac.compressors.quantize.quantizer import ROUNDED, Quantizer
from gravac.kernels import (
    GRIDS,
    MOST_BLOCK,
    dequantize_nearest,
    nearest_sizes,
    pack_digits,
    quantize_nearest,
    unpack_digits,
)


class Nearest(Quantizer):
    """Rounds every element to the nearest of L equally spaced levels of its block. For training with error feedback.

    Rounding at random, as QSGD does, is unbiased but errs more: of normal elements, with blocks of 64, 2.3 times the
    squared error with 15 levels, 3 times with 7 and 6 times with 3. Error feedback needs no unbiased codec. The
    spacing of a block is about the best one by least squares, sent as bfloat16.

    ``levels``: 39, 15, 7, 5, 3 or 2 (signs); by default the CF asked for decides. With blocks of 64 the wire CF is
    5.7, 7.5, 10.1, 11.8, 17.3 or 25.6. ``block``: elements that share a spacing. Biased, contractive: ``‖C(x) - x‖² <=
    (1 - 0.99/B) ‖x‖²`` with B the block; far less in practice: 0.2, 1, 4, 8, 19 and 36 % of normal elements' energy.
    """

    name = "nearest"
    source = (
        "Max 1960, Quantizing for minimum distortion; with error feedback: Karimireddy et al. 2019, Error feedback "
        "fixes SignSGD, definition 3.1"
    )
    traits = replace(ROUNDED, unbiased=False)
    examples: tuple[str, ...] = (
        "levels=39",
        "levels=15",
        "levels=7,block=7",
        "levels=5",
        "levels=3",
        "levels=2",
    )

    ladder: ClassVar[tuple[int, ...]] = tuple(GRIDS)
    """Numbers of levels to choose from, the most first."""

    def __init__(self, *, levels: int | None = None, block: int = 64) -> None:
        if levels is not None and levels not in self.ladder:
            raise ValueError(
                f"{self.name}: levels={levels} must be one of {', '.join(map(str, self.ladder))}"
            )
        if not 1 <= block <= MOST_BLOCK:
            raise ValueError(f"{self.name}: block={block} must be between 1 and {MOST_BLOCK} elements")
        self.levels_asked, self.block = levels, block

    def level_count(self, cf: float) -> int:
        """Returns the number of levels at that CF: the most whose codes are ``cf`` times smaller than float32."""
        asked = (levels for levels in self.ladder if 32 / GRIDS[levels].bits >= cf)
        return self.levels_asked or next(asked, self.ladder[-1])

    def layout(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        spacings, words = nearest_sizes(numel, self.block, self.level_count(cf))
        return TensorSpec(torch.bfloat16, spacings), TensorSpec(torch.int32, words)

    def round(self, x: Tensor, cf: float, key: Key) -> tuple[Tensor, Tensor]:
        """Returns the spacing of each block and the code of each element."""
        return quantize_nearest(x, self.block, self.level_count(cf))

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        spacings, codes = self.round(x, cf, key)
        return Payload((spacings, self.pack_codes(codes, cf)), None, x.numel(), cf, key)

    def decode(self, payload: Payload) -> Tensor:
        spacings, packed = payload.parts
        codes = self.unpack_codes(packed, payload.numel, payload.cf)
        return dequantize_nearest(spacings, codes, self.block, self.level_count(payload.cf))

    def pack_codes(self, codes: Tensor, cf: float) -> Tensor:
        """Returns the codes as they are sent."""
        return pack_digits(codes, GRIDS[self.level_count(cf)].base)

    def unpack_codes(self, packed: Tensor, numel: int, cf: float) -> Tensor:
        """Returns what ``pack_codes`` packed, uint8 of shape ``(numel,)``.

        Raises:
            ValueError: The codes do not fit ``numel``.
        """
        return unpack_digits(packed, numel, GRIDS[self.level_count(cf)].base)

    def block_of(self, cf: float) -> int | None:
        return self.block

    def divide(self, payload: Payload, size: int, dtype: torch.dtype) -> list[Payload]:
        spacings, packed = payload.parts
        cf, key = payload.cf, payload.key
        codes = self.unpack_codes(packed, payload.numel, cf).split(size)
        pieces = zip(spacings.split(-(-size // self.block)), codes, strict=True)
        return [
            Payload((part, self.pack_codes(piece, cf)), None, piece.numel(), cf, key)
            for part, piece in pieces
        ]

    def bound(self, numel: int, cf: float) -> Bound:
        """With the least-squares spacing, ``⟨l, x⟩² / ‖l‖²`` of the energy is kept, and at least ``Σ l²x² / ‖l‖² >=
        ‖x‖² / B`` because levels grow with magnitudes. Rounding the spacing costs less than a hundredth of that.
        """
        return Bound(delta=0.99 / min(numel, self.block))
