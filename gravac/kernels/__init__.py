"""The hot loops, behind one dispatch. Today one back end: ``reference``, in plain torch."""

from gravac.kernels.packing import pack, pack_trits, packed_bytes, trit_bytes, unpack, unpack_trits
from gravac.kernels.reference import energy, inner, select_top
from gravac.kernels.rounding import Norm, blocked, noise, relative, row_scales, stochastic_round

__all__ = [
    "Norm",
    "blocked",
    "energy",
    "inner",
    "noise",
    "pack",
    "pack_trits",
    "packed_bytes",
    "relative",
    "row_scales",
    "select_top",
    "stochastic_round",
    "trit_bytes",
    "unpack",
    "unpack_trits",
]
