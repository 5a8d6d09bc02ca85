"""Messages: a header that identifies a payload, and a few elements with their positions (docs/wire.md)."""

import ctypes
import sys
from collections.abc import Sequence
from hashlib import sha256
from zlib import crc32

import torch
from torch import Tensor

from gravac import kernels
from gravac.collectives.communicator import Communicator
from gravac.compressors.base import Compressor, Key, Layout, Payload
from gravac.compressors.dense import Dense
from gravac.compressors.sparse.selector import Indexed
from gravac.compressors.stack import Stack
from gravac.kernels import backend

HEADER_BYTES = 8
"""Bytes of the header, which says what a message is. Ranks agree on a plan before they send, so headers are equal. If
they are not, two ranks are at different buckets or steps, and their mean would be silently wrong. The second half may
be a checksum instead."""
_HALF = HEADER_BYTES // 2
SIZE_BYTES = 8
"""Bytes of the size of one message, which ranks exchange first if sizes vary."""
_VERSION = 1


class Header:
    """The header of all messages of one exchange, and of the same rounds on all ranks.

    Args:
        layout: Layout of the payloads that are exchanged.
        key: This rank's key. The messages of other ranks are read by the same key with their rank.
        checked: Whether messages have a checksum. The host waits for those on a device. None: they have one if sizes
            vary, as then a byte that changes on the way changes much of what follows, or where it ends. The sender
            itself uses what it still has of the payload, so its mean would differ from that of the other ranks.
    """

    __slots__ = ("_checked", "_digest", "key", "layout")

    def __init__(self, layout: Layout, key: Key, checked: bool | None = None) -> None:
        self.layout, self.key = layout, key
        self._checked = layout.specs is None if checked is None else checked
        fields = (layout.codec.name, layout.numel, layout.cf, str(layout.dtype), *key[:3])
        digest = sha256(f"{_VERSION}/{fields!r}".encode()).digest()
        self._digest = digest[: _HALF if self._checked else HEADER_BYTES]

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        """Return a header and these parts as one message, uint8."""
        header = self._digest
        if self._checked:
            header += _checksum([part.view(torch.uint8) for part in parts])
        number = int.from_bytes(header, sys.byteorder, signed=True)
        # Not torch.tensor: a copy from the host would wait.
        first = torch.full((1,), number, device=parts[0].device, dtype=torch.int64)
        return torch.cat([part.view(torch.uint8) for part in (first, *parts)])

    def strip(self, message: Tensor, rank: int) -> Tensor:
        """Return what follows the header of a message that ``rank`` sent.

        Raises:
            ValueError: The message belongs to another exchange, or was damaged. On a device this is checked only if
                there is a checksum, for which the host waits anyway.
        """
        if self._checked or (message.is_cpu and not backend.treated):
            header = bytes(message[:HEADER_BYTES].tolist())  # not numpy: neither torch nor gravac brings it
            layout, key, known = self.layout, self.key, len(self._digest)
            what = f"{layout.codec.name} at CF {layout.cf:g} of {layout.numel} elements"
            where = f"for bucket {key.bucket} of step {key.step}"
            if header[:known] != self._digest:
                raise ValueError(
                    f"rank {rank} sent something else than {what} {where}: the ranks are out of step"
                )
            if self._checked and header[known:] != _checksum([message[HEADER_BYTES:]]):
                raise ValueError(
                    f"the message of rank {rank} {where} was damaged on the way: its checksum is not that of its "
                    f"{message.numel()} bytes ({what})"
                )
        return message[HEADER_BYTES:]

    def read(self, message: Tensor, rank: int) -> Payload:
        """Return the payload in a message that ``rank`` sent. Raise as ``strip``."""
        return self.layout.unpack(self.strip(message, rank), self.key._replace(rank=rank))


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
        communicator: Communicator of the ranks, each with as many messages.
        messages: Messages of this rank.

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


class Entries:
    """The layout of a message with ``count`` of ``numel`` elements: coded values and packed positions.

    ``values`` codes the values, which have ``dtype`` on the wire.
    """

    def __init__(self, values: Compressor, count: int, numel: int, dtype: torch.dtype) -> None:
        self.values, self.numel = values.layout(count, 1.0, dtype), numel
        self.nbytes = HEADER_BYTES + self.values.nbytes + kernels.position_bytes(count, numel)
        """Bytes of a message."""

    def pack(self, header: Header, values: Tensor, positions: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        """Pack elements into a message.

        Args:
            header: Header of the exchange.
            values: Shape ``(count,)``.
            positions: Ascending and distinct, int32 of shape ``(count,)``.
            key: Seed material of the rounding.

        Returns:
            The message (uint8), and the values that will be read from it (float32).
        """
        codec = self.values.codec
        coded = codec.compress(values, 1.0, key, self.values.dtype)
        return header.pack((*coded.parts, kernels.pack_positions(positions, self.numel))), codec.decode(coded)

    def unpack(self, header: Header, message: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        """Unpack a message of any rank, as ``Header.strip``; ``key`` is the one it was packed with.

        Returns:
            Values (float32) and positions (int32), both of shape ``(count,)``.
        """
        message, layout = header.strip(message, key.rank), self.values
        coded = layout.unpack(message[: layout.nbytes], key)
        positions = kernels.unpack_positions(message[layout.nbytes :], layout.numel, self.numel)
        return layout.codec.decode(coded), positions


def owner_key(key: Key, owner: int) -> Key:
    """Return the key of an owner's message to all, whose rounding noise must be independent of that of the payloads."""
    return key._replace(seed=key.seed - 1, rank=owner)


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
