"""Blockwise int8 and int4: stochastic uniform quantisers with small blocks, good enough to hold an error memory."""

from gravac.compressors.quantize.qsgd import QSGD


class Int8(QSGD):
    """127 steps of the block's largest magnitude, blocks of 256: variance at most 0.4 % of ``‖x‖²``, CF 3.94."""

    name = "int8"
    source = "Dettmers 2016, 8-bit approximations for parallelism; Alistarh et al. 2017, lemma 3.1 with the max norm"
    examples: tuple[str, ...] = ()

    def __init__(self, *, block: int = 256) -> None:
        super().__init__(bits=8, block=block)


class Int4(QSGD):
    """7 steps of the block's largest magnitude, blocks of 32: variance at most 16.3 % of ``‖x‖²``, CF 6.4."""

    name = "int4"
    source = Int8.source
    examples: tuple[str, ...] = ()

    def __init__(self, *, block: int = 32) -> None:
        super().__init__(bits=4, block=block)
