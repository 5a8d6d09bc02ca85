"""SparseLoCo's codec: chunked Top-k with 2-bit values."""

from gravac.compressors.quantize.twobit import TwoBit
from gravac.compressors.sparse.chunktopk import ChunkTopK
from gravac.compressors.stack import Stack


class SparseLoCo(Stack):
    """The largest elements of each chunk of 4096, with 2-bit values. For error feedback.

    The same as ``chunktopk`` and ``twobit`` stacked. Positions take about 2 + log2(CF) bits each instead of the 12 of
    the published code, which sends 64 of 4096 (a CF of 64). The paper sends the change of many local steps; here it
    is the gradient of one.
    """

    name = "sparseloco"
    examples: tuple[str, ...] = ("chunk=64",)

    def __init__(self, *, chunk: int = 4096) -> None:
        super().__init__(ChunkTopK(chunk=chunk), TwoBit())
        self.name = type(self).name
