"""A codec applied to each row of a tensor by itself, so that every row becomes a payload of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Compressor, Key, Payload, TensorSpec
from gravac.kernels import Scalar, SelectionHint


@dataclass(frozen=True, slots=True)
class PayloadRows(Payload):
    """The parts of all payloads, and the payload of each row."""

    rows: tuple[Payload, ...] = ()

    def forget(self) -> None:
        """Free what was decoded, of each row too."""
        Payload.forget(self)
        for row in self.rows:
            row.forget()

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors that it refers to, those of each row too."""
        yield from Payload.tensors(self)
        for row in self.rows:
            yield from row.tensors()


def places(payload: Payload) -> tuple[Tensor, ...] | None:
    """Return the positions that a payload sends, in each row of equal length; None if it sends everything."""
    rows = payload.rows if isinstance(payload, PayloadRows) else (payload,)
    found = tuple(row.support for row in rows if row.support is not None)
    return found if len(found) == len(rows) else None


class Rows(Compressor):
    """Splits a flat tensor into rows of equal length and compresses each by itself.

    A reduce-scatter needs that: each rank gets one row, so each row must be a message that can be decoded alone. All
    rows of a codec of fixed size have the same number of bytes.

    Args:
        codec: Compresses a row.
        count: Rows of a tensor. Its number of elements must be a multiple of it.
    """

    def __init__(self, codec: Compressor, count: int) -> None:
        self.codec, self.count = codec, count
        self.name, self.source, self.traits = codec.name, codec.source, codec.traits

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...] | None:
        row = self.codec.specs(numel // self.count, cf, dtype)
        return None if row is None else row * self.count

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        return self.count * self.codec.wire_bytes(numel // self.count, cf, dtype)

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        return self.levels(x, (cf,), key, dtype)[0]

    def levels(
        self, x: Tensor, cfs: Sequence[float], key: Key, dtype: torch.dtype, hint: SelectionHint | None = None
    ) -> list[Payload]:
        rows = [
            self.codec.levels(row, cfs, self.key(key, number), dtype)
            for number, row in enumerate(self._split(x))
        ]
        return [
            self._joined(payloads, cf, key) for cf, payloads in zip(cfs, zip(*rows, strict=True), strict=True)
        ]

    def rebuild(self, parts: tuple[Tensor, ...], numel: int, cf: float, key: Key) -> Payload:
        each, size = len(parts) // self.count, numel // self.count
        rows = (
            self.codec.rebuild(parts[row * each : (row + 1) * each], size, cf, self.key(key, row))
            for row in range(self.count)
        )
        return self._joined(tuple(rows), cf, key)

    def blank(
        self, numel: int, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> Payload:
        rows = (
            self.codec.blank(numel // self.count, cf, self.key(key, row), dtype, device, value)
            for row in range(self.count)
        )
        return self._joined(tuple(rows), cf, key)

    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        for row, piece in zip(_rows(payload), self._split(out), strict=True):
            self.codec.decompress(row, piece, scale)

    def remove(self, payload: Payload, x: Tensor) -> None:
        for row, piece in zip(_rows(payload), self._split(x), strict=True):
            self.codec.remove(row, piece)

    def _energy(self, payload: Payload) -> Scalar:
        return sum(self.codec.energy(row) for row in _rows(payload))

    def inner(self, payload: Payload, x: Tensor) -> Scalar:
        return sum(
            self.codec.inner(row, piece) for row, piece in zip(_rows(payload), self._split(x), strict=True)
        )

    def bound(self, numel: int, cf: float) -> Bound:
        return self.codec.bound(numel // self.count, cf)  # of each row, hence of all

    def key(self, key: Key, row: int) -> Key:
        """Return the key of a row, whose random draws are its own."""
        return key._replace(bucket=key.bucket * self.count + row)

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.view(self.count, -1).unbind()

    def _joined(self, rows: tuple[Payload, ...], cf: float, key: Key) -> Payload:
        parts = tuple(part for row in rows for part in row.parts)
        return PayloadRows(parts, None, sum(row.numel for row in rows), cf, key, rows)


def _rows(payload: Payload) -> tuple[Payload, ...]:
    assert isinstance(payload, PayloadRows)
    return payload.rows
