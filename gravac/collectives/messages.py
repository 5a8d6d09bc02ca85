"""Messages: a header that identifies a payload, and a few elements with their positions."""

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from zlib import crc32

import torch
from torch import Tensor

from gravac import kernels
from gravac.collectives.communicator import Communicator
from gravac.compressors.base import Compressor, Key, Payload
from gravac.compressors.dense import Dense
from gravac.compressors.sparse.selector import Indexed
from gravac.compressors.stack import Stack

HEADER_BYTES = 8
"""Bytes of the header, which says what a message is. Ranks agree on a plan before they send, so headers are equal. If
they are not, two ranks are at different buckets or steps, and their mean would be silently wrong. The second half may
be a checksum instead."""
_HALF = HEADER_BYTES // 2
SIZE_BYTES = 8
"""Bytes of the size of one message, which ranks exchange first if sizes vary."""
HeaderFields = tuple[str, int, float, str, int, int, int]
"""Codec, elements, CF, dtype, and the key's seed, step and bucket."""
_VERSION = 1


def pack_payload(
    payload: Payload, codec: Compressor, key: Key, dtype: torch.dtype, piece: Payload | None = None
) -> Tensor:
    """Pack a header and a payload, or a ``piece`` of it, into one message.

    Returns:
        uint8, with ``HEADER_BYTES`` more than the parts have.
    """
    parts = payload.parts if piece is None else piece.parts
    return add_header(parts, header_fields(payload, codec, key, dtype), checked=is_checked(codec))


def is_checked(codec: Compressor) -> bool:
    """Return whether messages of a codec have a checksum.

    They have if sizes vary: then a byte that changes on the way changes much of what follows, or where it ends. The
    sender itself may use what it still has of the payload, so its mean would differ from that of the other ranks.
    """
    return not codec.traits.fixed_size


def unpack_payload(
    message: Tensor, payload: Payload, codec: Compressor, key: Key, dtype: torch.dtype
) -> Tensor:
    """Check and remove the header of a message.

    Args:
        message: uint8, as ``pack_payload`` made it on another rank.
        payload: This rank's payload of the same exchange.
        codec: The codec of the exchange.
        key: The key of the rank that sent the message.
        dtype: The dtype that values have on the wire.

    Returns:
        The bytes that follow the header.

    Raises:
        ValueError: The message belongs to another payload, or was damaged. On a device this is checked only if the
            codec makes the host wait anyway.
    """
    return strip_header(message, header_fields(payload, codec, key, dtype), key, checked=is_checked(codec))


def add_header(parts: Sequence[Tensor], fields: HeaderFields, *, checked: bool = False) -> Tensor:
    """Return a header and these parts as one uint8 tensor.

    Args:
        parts: What follows the header.
        fields: What the message is.
        checked: Whether to put the checksum of the parts into the header. The host waits for parts on a device.
    """
    header = _digest(*fields)
    if checked:
        header = header[:_HALF] + _checksum([part.view(torch.uint8) for part in parts])
    number = int.from_bytes(header, sys.byteorder, signed=True)
    # Not torch.tensor: a copy from the host would wait.
    first = torch.full((1,), number, device=parts[0].device, dtype=torch.int64)
    return torch.cat([part.view(torch.uint8) for part in (first, *parts)])


def strip_header(message: Tensor, fields: HeaderFields, key: Key, *, checked: bool = False) -> Tensor:
    """Return the bytes after the header.

    Args:
        message: The message that ``add_header`` made, on any rank.
        fields: What it should be.
        key: The key of the rank that sent it.
        checked: The value that was given to ``add_header``.

    Raises:
        ValueError: As ``unpack_payload`` does.
    """
    if checked or not kernels.on_device(message):
        header = bytes(message[:HEADER_BYTES].tolist())  # not numpy: neither torch nor gravac brings it
        codec, numel, cf = fields[:3]
        known = _HALF if checked else HEADER_BYTES
        if header[:known] != _digest(*fields)[:known]:
            raise ValueError(
                f"rank {key.rank} sent something else than {codec} at CF {cf:g} of {numel} elements for bucket "
                f"{key.bucket} of step {key.step}: the ranks are out of step"
            )
        if checked and header[_HALF:] != _checksum([message[HEADER_BYTES:]]):
            raise ValueError(
                f"the message of rank {key.rank} for bucket {key.bucket} of step {key.step} was damaged on the way: "
                f"its checksum is not that of its {message.numel()} bytes ({codec} at CF {cf:g} of {numel} elements)"
            )
    return message[HEADER_BYTES:]


def _checksum(parts: Sequence[Tensor]) -> bytes:
    """Return the CRC-32 of these bytes, one after the other."""
    found = 0
    for part in parts:
        host = part.cpu().contiguous()
        found = crc32(ctypes.string_at(host.data_ptr(), host.numel()), found)
    return found.to_bytes(_HALF, sys.byteorder)


def exchange_sizes(communicator: Communicator, messages: Sequence[Tensor]) -> list[list[int]]:
    """Exchange the bytes of messages whose sizes vary, and wait for all ranks.

    Args:
        communicator: Of the ranks, each with as many messages.
        messages: Of this rank.

    Returns:
        The sizes of each rank's messages, in rank order.
    """
    own = torch.tensor(
        [message.numel() for message in messages], device=messages[0].device, dtype=torch.int64
    )
    every = own.new_empty((communicator.size, own.numel()))
    communicator.gather(every.view(-1), own).wait()
    sizes: list[list[int]] = every.tolist()
    return sizes


def padded(messages: Sequence[Tensor], size: int) -> Tensor:
    """Return messages as rows of one tensor, filled up with zeros to ``size`` bytes each."""
    rows = messages[0].new_zeros((len(messages), size))
    for row, message in zip(rows, messages, strict=True):
        row[: message.numel()] = message
    return rows


def header_fields(payload: Payload, codec: Compressor, key: Key, dtype: torch.dtype) -> HeaderFields:
    """Return what the header of a payload identifies."""
    return codec.name, payload.numel, payload.cf, str(dtype), *key[:3]


@lru_cache(maxsize=4096)
def _digest(*fields: object) -> bytes:
    return sha256(f"{_VERSION}/{fields!r}".encode()).digest()[:HEADER_BYTES]


@dataclass(frozen=True, slots=True)
class Entries:
    """The layout of a message with ``count`` of ``numel`` elements: coded values and packed positions.

    ``values`` codes the values, which have ``dtype`` on the wire; ``cf`` is that of the exchange.
    """

    values: Compressor
    dtype: torch.dtype
    cf: float
    count: int
    numel: int

    @property
    def nbytes(self) -> int:
        """Bytes of a message."""
        return HEADER_BYTES + self._value_bytes + kernels.position_bytes(self.count, self.numel)

    def pack(self, values: Tensor, positions: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        """Pack elements into a message.

        Args:
            values: Shape ``(count,)``.
            positions: Ascending and distinct, int32 of shape ``(count,)``.
            key: Seed material of the rounding.

        Returns:
            The message (uint8), and the values that will be read from it (float32).
        """
        coded = self.values.compress(values, 1.0, key, self.dtype)
        packed = kernels.pack_positions(positions, self.numel)
        return add_header((*coded.parts, packed), self._fields(key)), self.values.decode(coded)

    def unpack(self, message: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        """Unpack a message.

        Args:
            message: uint8, from any rank.
            key: The key it was packed with.

        Returns:
            Values (float32) and positions (int32), both of shape ``(count,)``.

        Raises:
            ValueError: The message belongs to another exchange.
        """
        message = strip_header(message, self._fields(key), key)
        values, positions = message[: self._value_bytes], message[self._value_bytes :]
        coded = self.values.layout(self.count, 1.0, self.dtype).unpack(values, key)
        return self.values.decode(coded), kernels.unpack_positions(positions, self.count, self.numel)

    def _fields(self, key: Key) -> HeaderFields:
        return self.values.name, self.numel, self.cf, str(self.dtype), *key[:3]

    @property
    def _value_bytes(self) -> int:
        return self.values.wire_bytes(self.count, 1.0, self.dtype)


def split_codec(compressor: Compressor) -> tuple[Indexed, Compressor] | None:
    """Split a codec into the selector of the elements and the codec of their values.

    Returns:
        Both; None for a codec that is not made like that, or whose number of elements varies.
    """
    selector: Compressor = compressor
    values: Compressor = Dense()
    if isinstance(compressor, Stack):
        selector, values = compressor.selector, compressor.quantizer
    if isinstance(selector, Indexed) and selector.traits.fixed_size:
        return selector, values
    return None
