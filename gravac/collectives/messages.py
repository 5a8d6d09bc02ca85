"""Messages: a header that says which payload follows, and a few elements with their positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors.base import Compressor, Key, Payload
from gravac.compressors.dense import Dense
from gravac.compressors.sparse.selector import Indexed
from gravac.compressors.stack import Stack

HEADER_BYTES = 8
Facts = tuple[str, int, float, str, int, int, int]
"""Codec, elements, CF, dtype, and the key's seed, step and bucket."""
_VERSION = 1


def sealed(payload: Payload, codec: Compressor, key: Key, dtype: torch.dtype) -> Tensor:
    """The message: header, then the payload's parts; uint8 of shape ``(HEADER_BYTES + payload.nbytes,)``."""
    return marked(payload.parts, facts_of(payload, codec, key, dtype))


def opened(message: Tensor, payload: Payload, codec: Compressor, key: Key, dtype: torch.dtype) -> Tensor:
    """What follows the header. Raises ValueError when the message is of another payload than ``payload``'s rank sent;
    on a GPU nobody looks, which would have to wait."""
    return unmarked(message, facts_of(payload, codec, key, dtype), key)


def marked(parts: Sequence[Tensor], facts: Facts) -> Tensor:
    """Header, then these parts, as one uint8 tensor."""
    header = torch.frombuffer(bytearray(_digest(*facts)), dtype=torch.uint8)
    return torch.cat([header.to(parts[0].device), *(part.view(torch.uint8) for part in parts)])


def unmarked(message: Tensor, facts: Facts, key: Key) -> Tensor:
    """What follows the header; raises as ``opened`` does. ``key``: of the rank that sent it."""
    if message.device.type == "cpu":
        found = message[:HEADER_BYTES].numpy().tobytes()
        if found != _digest(*facts):
            codec, numel, cf = facts[:3]
            raise ValueError(
                f"rank {key.rank} sent something else than {codec} at CF {cf:g} of {numel} elements for bucket "
                f"{key.bucket} of step {key.step}: the ranks are out of step"
            )
    return message[HEADER_BYTES:]


def facts_of(payload: Payload, codec: Compressor, key: Key, dtype: torch.dtype) -> Facts:
    """What its header says."""
    return codec.name, payload.numel, payload.cf, str(dtype), *key[:3]


@lru_cache(maxsize=4096)
def _digest(*facts: object) -> bytes:
    return sha256(f"{_VERSION}/{facts!r}".encode()).digest()[:HEADER_BYTES]


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
