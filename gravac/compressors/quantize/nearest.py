"""Nearest: every element becomes the nearest of a few equally spaced levels of its block."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Compressor, Key, Payload, TensorSpec
from gravac.compressors.quantize.quantizer import ROUNDED, Quantizer
from gravac.kernels import (
    GRIDS,
    MOST_BLOCK,
    add_nearest,
    decode_blocks,
    encode_blocks,
    expected_bytes,
    nearest_sizes,
    on_device,
    pack_digits,
    quantize_nearest,
    unpack_digits,
)
from gravac.kernels.device.rounded import FORMATS, Rounding, nearest
from gravac.offers import Offer

Coding = Literal["digits", "huffman"]


class Nearest(Quantizer):
    """Rounds every element to the nearest of L equally spaced levels of its block. For training with error feedback.

    Rounding at random, as QSGD does, is unbiased but has a larger squared error: 2.3 times with 15 levels, 3 times with
    7 and 6 times with 3, for normal elements in blocks of 64. Error feedback needs no unbiased codec. The spacing of a
    block is about the best one by least squares, sent as bfloat16.

    ``levels``: 39, 15, 7, 5, 3 or 2 (signs); by default the CF asked for decides. With blocks of 64 the wire CF is
    5.7, 7.5, 10.1, 11.8, 17.3 or 25.6. ``block``: elements that share a spacing. Biased, contractive: ``‖C(x) - x‖² <=
    (1 - 0.99/B) ‖x‖²`` with B the block; far less in practice: 0.2, 1, 4, 8, 19 and 36 % of normal elements' energy.

    ``coding``: ``digits``, or ``huffman``: levels near zero are frequent and take fewer bits, so the same values take a
    tenth fewer bytes. The wire CF of normal elements is then 6.3, 8.6, 11.6, 13.8, 19.3 or 28.7, and that of gradients
    is larger. Encoding takes 0.5 to 2 ns more for each element, and so does decoding. The size of a payload follows
    from its values, so ranks exchange sizes first. On GPUs the host codes, so training waits for it.
    """

    name = "nearest"
    source = (
        "Max 1960, Quantizing for minimum distortion; with error feedback: Karimireddy et al. 2019, Error feedback "
        "fixes SignSGD, definition 3.1"
    )
    traits = replace(ROUNDED, unbiased=False)
    offer = Offer(
        plans={
            "levels=39": 5.7,
            "levels=15": 7.5,
            "levels=7": 10.1,
            "levels=5": 11.8,
            "levels=3": 17.3,
            "levels=2": 25.6,
            "levels=39,coding=huffman": 5.7,
            "levels=15,coding=huffman": 7.5,
            "levels=7,coding=huffman": 10.1,
        },
        encode_ns=2.4,
        sgd={
            5.7: (0.986, 0.997, 1.000),
            7.5: (0.985, 0.994, 1.000),
            10.1: (0.931, 0.974, 1.000),
            17.3: (0.728, 0.924, 0.972),
            25.6: (0.033, 0.661, 0.705),
        },
        adam={
            5.7: (0.964, 0.993, 1.000),
            7.5: (0.957, 0.984, 0.995),
            10.1: (0.911, 0.963, 0.992),
            17.3: (0.808, 0.866, 0.922),
            25.6: (0.701, 0.723, 0.723),
        },
    )
    examples: tuple[str, ...] = (
        "levels=39",
        "levels=15",
        "levels=7,block=7",
        "levels=5",
        "levels=3",
        "levels=2",
        "levels=7,coding=huffman",
    )

    ladder: ClassVar[tuple[int, ...]] = tuple(GRIDS)
    """Numbers of levels to choose from, the most first."""
    normal_bits: ClassVar[Mapping[int, float]] = {39: 4.98, 15: 3.62, 7: 2.64, 5: 2.21, 3: 1.54, 2: 1.0}
    """Bits of a Huffman coded element by the number of levels, of normal elements in blocks of 64."""

    def __init__(self, *, levels: int | None = None, block: int = 64, coding: Coding = "digits") -> None:
        if levels is not None and levels not in self.ladder:
            raise ValueError(
                f"{self.name}: levels={levels} must be one of {', '.join(map(str, self.ladder))}"
            )
        if not 1 <= block <= MOST_BLOCK:
            raise ValueError(f"{self.name}: block={block} must be between 1 and {MOST_BLOCK} elements")
        if coding not in get_args(Coding):
            raise ValueError(f"{self.name}: coding={coding!r} must be one of {', '.join(get_args(Coding))}")
        self.levels_asked, self.block, self.coding = levels, block, coding
        if coding == "huffman":
            self.traits = replace(self.traits, fixed_size=False, sync_free=False)

    def level_count(self, cf: float) -> int:
        """Return the number of levels at that CF: the most whose codes are ``cf`` times smaller than float32."""
        asked = (levels for levels in self.ladder if 32 / GRIDS[levels].bits >= cf)
        return self.levels_asked or next(asked, self.ladder[-1])

    def message_rounding(self, cf: float, dtype: torch.dtype) -> Rounding | None:
        found = nearest(self.level_count(cf))
        plain = type(self).round is Nearest.round and self.coding == "digits"
        return found if plain and self.block == found.block and dtype in FORMATS else None

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...] | None:
        return None if self.coding == "huffman" else self._digits(numel, cf)

    def _digits(self, numel: int, cf: float) -> tuple[TensorSpec, ...]:
        """Return the specs without Huffman coding."""
        spacings, words = nearest_sizes(numel, self.block, self.level_count(cf))
        return TensorSpec(torch.bfloat16, spacings), TensorSpec(torch.int32, words)

    def plain_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        return sum(spec.nbytes for spec in self._digits(numel, cf))

    def specs_of(self, nbytes: int, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        return (TensorSpec(torch.uint8, nbytes),)

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        if self.coding != "huffman":
            return super().wire_bytes(numel, cf, dtype)
        levels = self.level_count(cf)
        blocks, _ = nearest_sizes(numel, self.block, levels)
        return expected_bytes(blocks, numel, GRIDS[levels].base, self.normal_bits[levels])

    def round(self, x: Tensor, cf: float, key: Key, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Return the spacing of each block and the code of each element. May add to ``sums``: see
        ``quantize_nearest``."""
        return quantize_nearest(x, self.block, self.level_count(cf), sums)

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        sums = torch.zeros(2, dtype=torch.float64, device="cpu")
        spacings, codes = self.round(x, cf, key, sums)
        payload = Payload(self.pack(spacings, codes, cf), None, x.numel(), cf, key)
        kept = payload.decoded
        if not on_device(x):
            energy, inner = sums.tolist()
            if energy:  # else nobody has added to it, or all is zero
                kept.energy, kept.inner = energy, inner
        if self.coding == "huffman":
            kept.rounded = spacings, codes
        return payload

    def decode(self, payload: Payload) -> Tensor:
        return Compressor.decode(self, payload)

    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        add_nearest(out, *self.unpacked(payload), self.block, self.level_count(payload.cf), scale)

    def remove(self, payload: Payload, x: Tensor) -> None:
        self.decompress(payload, x, -1.0)  # without a tensor of what it decodes to

    def pack(self, spacings: Tensor, codes: Tensor, cf: float) -> tuple[Tensor, ...]:
        """Return the parts of a payload."""
        base = GRIDS[self.level_count(cf)].base
        if self.coding == "huffman":
            return (encode_blocks(spacings, codes, base),)
        return spacings, pack_digits(codes, base)

    def unpacked(self, payload: Payload) -> tuple[Tensor, Tensor]:
        """Return the spacings and codes of a payload.

        Raises:
            ValueError: The parts do not fit its elements.
        """
        levels = self.level_count(payload.cf)
        if payload.decoded.rounded is not None:
            return payload.decoded.rounded
        if self.coding == "huffman":
            blocks, _ = nearest_sizes(payload.numel, self.block, levels)
            return decode_blocks(payload.parts[0], blocks, payload.numel, GRIDS[levels].base)
        spacings, packed = payload.parts
        return spacings, unpack_digits(packed, payload.numel, GRIDS[levels].base)

    def blank(
        self, numel: int, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> Payload:
        if self.coding != "huffman":
            return super().blank(numel, cf, key, dtype, device, value)
        levels = self.level_count(cf)
        spacings = torch.full(
            (nearest_sizes(numel, self.block, levels)[0],), value, dtype=torch.bfloat16, device=device
        )
        return self.rebuild(
            self.pack(spacings, torch.zeros(numel, dtype=torch.uint8, device=device), cf), numel, cf, key
        )

    def block_of(self, cf: float) -> int | None:
        return self.block

    def divide(self, payload: Payload, size: int, dtype: torch.dtype) -> list[Payload]:
        spacings, codes = self.unpacked(payload)
        pieces = zip(spacings.split(-(-size // self.block)), codes.split(size), strict=True)
        return [
            Payload(self.pack(part, piece, payload.cf), None, piece.numel(), payload.cf, payload.key)
            for part, piece in pieces
        ]

    def bound(self, numel: int, cf: float) -> Bound:
        """With the least-squares spacing, ``⟨l, x⟩² / ‖l‖²`` of the energy is kept, and at least ``Σ l²x² / ‖l‖² >=
        ‖x‖² / B`` because levels grow with magnitudes. Rounding the spacing costs less than a hundredth of that.
        """
        return Bound(delta=0.99 / min(numel, self.block))
