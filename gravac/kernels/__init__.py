"""The hot loops: ``reference`` in plain torch, ``cpu`` and ``cuda`` compiled, with equal results."""

from gravac.kernels.backend import active, compiled, lacking, on_gpu, use, warm
from gravac.kernels.digits import pack_digits, unpack_digits, word_count
from gravac.kernels.draws import add_run, deal, distinct, global_positions, run_places, run_start, take_run
from gravac.kernels.histogram import Tally, tally
from gravac.kernels.linalg import add_finite, energy, finite_or_zero, inner, inner_at, product, scatter_add
from gravac.kernels.nearest import (
    GRIDS,
    MOST_BLOCK,
    dequantize_nearest,
    dither,
    nearest_sizes,
    quantize_nearest,
)
from gravac.kernels.packing import pack, pack_trits, packed_bytes, trit_bytes, unpack, unpack_trits
from gravac.kernels.positions import pack_positions, position_bytes, unpack_positions
from gravac.kernels.randomness import noise
from gravac.kernels.reference import chosen_places, magnitudes, powers_of_two
from gravac.kernels.rounding import (
    Norm,
    blocked,
    dequantize,
    quantize,
    relative,
    round_bfloat16,
    row_scales,
    stochastic_round,
)
from gravac.kernels.scalars import Scalar, alignment, on_device, placed, scalar, treated_as_device
from gravac.kernels.selection import (
    SelectionHint,
    count_above,
    select_top,
    take_above,
    take_top,
    take_top_of_chunks,
)
from gravac.kernels.sifting import LEAST_CF, Room, Sifted, Sifter
from gravac.kernels.subtractive import dequantize_subtractive, dither_subtractive

__all__ = [
    "GRIDS",
    "LEAST_CF",
    "MOST_BLOCK",
    "Norm",
    "Room",
    "Scalar",
    "SelectionHint",
    "Sifted",
    "Sifter",
    "Tally",
    "active",
    "add_finite",
    "add_run",
    "alignment",
    "blocked",
    "chosen_places",
    "compiled",
    "count_above",
    "deal",
    "dequantize",
    "dequantize_nearest",
    "dequantize_subtractive",
    "distinct",
    "dither",
    "dither_subtractive",
    "energy",
    "finite_or_zero",
    "global_positions",
    "inner",
    "inner_at",
    "lacking",
    "magnitudes",
    "nearest_sizes",
    "noise",
    "on_device",
    "on_gpu",
    "pack",
    "pack_digits",
    "pack_positions",
    "pack_trits",
    "packed_bytes",
    "placed",
    "position_bytes",
    "powers_of_two",
    "product",
    "quantize",
    "quantize_nearest",
    "relative",
    "round_bfloat16",
    "row_scales",
    "run_places",
    "run_start",
    "scalar",
    "scatter_add",
    "select_top",
    "stochastic_round",
    "take_above",
    "take_run",
    "take_top",
    "take_top_of_chunks",
    "tally",
    "treated_as_device",
    "trit_bytes",
    "unpack",
    "unpack_digits",
    "unpack_positions",
    "unpack_trits",
    "use",
    "warm",
    "word_count",
]
