"""Some elements of a tensor as one message of a size known beforehand: their values, and their places packed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gravac import kernels
from gravac.collectives.header import HEADER_BYTES, Facts, marked, unmarked
from gravac.compressors.base import Compressor, Key
from gravac.compressors.dense import Dense
from gravac.compressors.sparse.selector import Indexed
from gravac.compressors.stack import Stack


@dataclass(frozen=True, slots=True)
class Entries:
    """``count`` elements of ``numel``, of a tensor at ``cf``; values as ``coder`` makes them of ``dtype``."""

    coder: Compressor
    dtype: torch.dtype
    cf: float
    count: int
    numel: int

    @property
    def nbytes(self) -> int:
        """Bytes of a message."""
        return HEADER_BYTES + self._value_bytes + kernels.position_bytes(self.count, self.numel)

    def pack(self, values: Tensor, places: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        """The message (uint8), and the values that will be read from it (float32). ``places``: ascending, distinct."""
        coded = self.coder.compress(values, 1.0, key, self.dtype)
        packed = kernels.pack_positions(places, self.numel)
        return marked((*coded.parts, packed), self._facts(key)), self.coder.decode(coded)

    def unpack(self, message: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        """Values (float32) and places (int32). ``key``: as packed with. Raises ValueError for a message of another
        exchange."""
        message = unmarked(message, self._facts(key), key)
        values, places = message[: self._value_bytes], message[self._value_bytes :]
        coded = self.coder.unpack(values, self.count, 1.0, key, self.dtype)
        return self.coder.decode(coded), kernels.unpack_positions(places, self.count, self.numel)

    def _facts(self, key: Key) -> Facts:
        return self.coder.name, self.numel, self.cf, str(self.dtype), *key[:3]

    @property
    def _value_bytes(self) -> int:
        return self.coder.wire_bytes(self.count, 1.0, self.dtype)


def parts(compressor: Compressor) -> tuple[Indexed, Compressor] | None:
    """Which codec chooses the elements and which one codes their values; None for one that is not made like that, or
    sends a number of elements that is not known beforehand."""
    chooser: Compressor = compressor
    coder: Compressor = Dense()
    if isinstance(compressor, Stack):
        chooser, coder = compressor.selector, compressor.quantiser
    if isinstance(chooser, Indexed) and chooser.traits.fixed_size:
        return chooser, coder
    return None
