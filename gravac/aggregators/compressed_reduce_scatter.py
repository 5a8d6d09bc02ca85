"""The mean over ranks of each rank's own row, for trainers that shard gradients: a compressed reduce-scatter."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.aggregators.oneshot import OfCodec
from gravac.collectives import Communicator, Exchange, scatter_bytes
from gravac.collectives.messages import (
    HEADER_BYTES,
    SIZE_BYTES,
    exchange_sizes,
    pack_payload,
    padded,
    unpack_payload,
)
from gravac.compressors.base import Compressor, Key, Payload
from gravac.compressors.rows import PayloadRows, Rows
from gravac.kernels import Scalar, SelectionHint
from gravac.memories.base import Bucket


@dataclass(slots=True)
class _Summed(Exchange):
    """Values of a linear codec, summed by the reduce-scatter."""

    codec: Rows
    values: Tensor  # kept alive until the collective is done
    mean: Payload  # of this rank's row

    def mean_into(self, out: Tensor) -> None:
        out.zero_()
        self.codec.codec.decompress(self.mean, out)


@dataclass(slots=True)
class _Arriving(Exchange):
    """A message from each rank with its payload of this rank's row."""

    codec: Rows
    messages: Tensor  # kept alive until the collective is done
    arrived: Tensor  # uint8, a message of each rank, in rank order
    sizes: list[int]  # bytes of each without padding
    own: Payload
    key: Key
    dtype: torch.dtype

    def mean_into(self, out: Tensor) -> None:
        codec, own = self.codec.codec, self.own
        layout = codec.layout(own.numel, own.cf, self.dtype)
        out.zero_()
        for rank, (message, size) in enumerate(zip(self.arrived, self.sizes, strict=True)):
            key = self.key._replace(rank=rank)
            packed = unpack_payload(message[:size], own, codec, key, self.dtype)
            codec.decompress(layout.unpack(packed, key), out, 1.0 / len(self.sizes))


@dataclass(slots=True)
class _Draft:
    owner: "CompressedReduceScatter"
    codec: Rows
    payloads: dict[float, Payload]
    x: Tensor | None
    key: Key
    dtype: torch.dtype

    def kept_energy(self, cf: float) -> Scalar:
        return 0.0 if self.x is None else self.codec.kept_energy(self.payloads[cf], self.x)

    def send(self, cf: float) -> Exchange:
        payload = self.payloads[cf]
        assert isinstance(payload, PayloadRows)
        send = self.owner.sum_values if self.codec.traits.linear else self.owner.exchange_messages
        return send(self.codec, payload, self.key, self.dtype)


class CompressedReduceScatter(OfCodec):
    """A compressed reduce-scatter. ``x`` holds one row for each rank; the mean of a rank is that of its row.

    The values of linear codecs are summed by an ordinary reduce-scatter. Other codecs make a message of each row, and
    an all-to-all brings each rank the messages of its row. A rank sends (n-1)/n of its payload.

    Args:
        compressor: Compresses a row.
        group: The ranks that average.
        elements: Elements of the whole model, for codecs that look beyond a tensor; None if a tensor is the whole.
    """

    def __init__(
        self, compressor: Compressor, group: dist.ProcessGroup | Communicator, elements: int | None = None
    ) -> None:
        super().__init__(compressor, group, elements)
        self.sync_free = compressor.traits.sync_free
        self.codec = Rows(self.compressor, self.communicator.size)

    def prepare(
        self,
        tensors: Bucket,
        x: Tensor,
        cfs: Sequence[float],
        key: Key,
        dtype: torch.dtype,
        hint: SelectionHint | None = None,
    ) -> _Draft:
        """Compress each row of ``x`` to ``cfs``; see ``Aggregator.prepare``.

        Raises:
            ValueError: A payload does not have the size that the codec declares.
        """
        self.compressor.observe(x, cfs)
        payloads = self.codec.levels(x, cfs, key, dtype)
        for payload in payloads:
            assert isinstance(payload, PayloadRows)
            for row in payload.rows:
                self.compressor.layout(row.numel, row.cf, dtype).check(row)
        return _Draft(self, self.codec, dict(zip(cfs, payloads, strict=True)), x, key, dtype)

    def blank(
        self, tensors: Bucket, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> _Draft:
        payload = self.codec.blank(sum(tensors.numels), cf, key, dtype, device, value)
        return _Draft(self, self.codec, {cf: payload}, None, key, dtype)

    def wire_bytes(self, tensors: Bucket, cf: float, dtype: torch.dtype, ranks: int) -> int:
        headers = 0 if self.compressor.traits.linear else ranks * HEADER_BYTES
        return headers + ranks * self.compressor.wire_bytes(sum(tensors.numels) // ranks, cf, dtype)

    def sum_values(self, codec: Rows, payload: PayloadRows, key: Key, dtype: torch.dtype) -> Exchange:
        """Sum the values of all ranks. Their positions are the same, so they are not sent.

        Rows may have different numbers of values (``bernoulli``), each the same on all ranks. Short ones are padded.
        """
        own, lengths = payload.rows[self.communicator.rank], [row.values.numel() for row in payload.rows]
        values = own.values.new_zeros((len(lengths), max(lengths)))
        for row, part in zip(payload.rows, values, strict=True):
            torch.mul(row.values, self.share, out=part[: row.values.numel()])
        mean = values.new_empty(values.shape[1])
        work = self.communicator.scatter_sum(mean, values.view(-1))
        sent_bytes = scatter_bytes(values.nbytes, len(lengths), self.communicator.scatters_whole)
        return _Summed(
            work,
            sent_bytes,
            values.nbytes,
            codec,
            payload,
            values,
            replace(own, parts=(mean[: own.values.numel()],)),
        )

    def exchange_messages(self, codec: Rows, payload: PayloadRows, key: Key, dtype: torch.dtype) -> Exchange:
        """Send each rank the message of its row. Where sizes vary, ranks exchange theirs first, and wait."""
        rank, ranks = self.communicator.rank, self.communicator.size
        messages = [
            pack_payload(row, codec.codec, codec.key(key, number), dtype)
            for number, row in enumerate(payload.rows)
        ]
        sizes, longest, size_bytes = [messages[0].numel()] * ranks, messages[0].numel(), 0
        if not codec.traits.fixed_size:
            every = exchange_sizes(self.communicator, messages)
            sizes, longest, size_bytes = (
                [row[rank] for row in every],
                max(map(max, every)),
                SIZE_BYTES * ranks,
            )
        rows = padded(messages, longest)
        arrived = torch.empty_like(rows)
        work = self.communicator.exchange(arrived.view(-1), rows.view(-1))
        return _Arriving(
            work,
            scatter_bytes(rows.nbytes, ranks, by_all_reduce=False) + (ranks - 1) * size_bytes,
            rows.nbytes + size_bytes,
            codec,
            payload,
            rows,
            arrived,
            sizes,
            payload.rows[rank],
            codec.key(key, rank),
            dtype,
        )
