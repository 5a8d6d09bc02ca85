"""The mean over ranks of each rank's own row, for trainers that shard gradients: a compressed reduce-scatter."""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from gravac.aggregators.oneshot import CodecBucket, OfCodec
from gravac.collectives import Communicator, Exchange, scatter_bytes
from gravac.collectives.base import SummedValues
from gravac.collectives.gather import Gathered
from gravac.collectives.messages import HEADER_BYTES, SIZE_BYTES, Header, exchange_sizes, padded
from gravac.compressors.base import Compressor, Key, Layout, Payload
from gravac.compressors.rows import PayloadRows, Rows
from gravac.memories.bucket import Bucket


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

    def open(self, bucket: Bucket) -> CodecBucket:
        return CodecBucket(self, bucket, self.codec)

    def sender(self, layout: Layout) -> "CompressedReduceScatter":
        return self

    def wire_bytes(self, tensors: Bucket, cf: float, dtype: torch.dtype, ranks: int) -> int:
        headers = 0 if self.compressor.traits.linear else ranks * HEADER_BYTES
        return headers + ranks * self.compressor.wire_bytes(sum(tensors.numels) // ranks, cf, dtype)

    def exchange(self, layout: Layout, payload: Payload, x: Tensor | None, key: Key) -> Exchange:
        """Send each rank its row; see ``Collective.exchange``."""
        assert isinstance(payload, PayloadRows)
        if self.codec.traits.linear:
            return self._sum_values(payload)
        return self._exchange_messages(layout, payload, key)

    def _sum_values(self, payload: PayloadRows) -> Exchange:
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
        of_row = replace(own, parts=(mean[: own.values.numel()],))
        return SummedValues(
            work, sent_bytes, values.nbytes, self.codec, payload, of_row, self.compressor, values
        )

    def _exchange_messages(self, layout: Layout, payload: PayloadRows, key: Key) -> Exchange:
        """Send each rank the message of its row. Where sizes vary, ranks exchange theirs first, and wait."""
        rank, ranks = self.communicator.rank, self.communicator.size
        of_row = self.compressor.layout(layout.numel // ranks, layout.cf, layout.dtype)
        headers = [Header(of_row, self.codec.key(key, number)) for number in range(ranks)]
        messages = [header.pack(row.parts) for header, row in zip(headers, payload.rows, strict=True)]
        sizes, longest, size_bytes = [messages[0].numel()] * ranks, messages[0].numel(), 0
        if of_row.specs is None:
            every = exchange_sizes(self.communicator, messages)
            sizes, longest = [row[rank] for row in every], max(map(max, every))
            size_bytes = SIZE_BYTES * ranks
        rows = padded(messages, longest)
        arrived = torch.empty_like(rows)
        work = self.communicator.exchange(arrived.view(-1), rows.view(-1))
        return Gathered(
            work,
            scatter_bytes(rows.nbytes, ranks, by_all_reduce=False) + (ranks - 1) * size_bytes,
            rows.nbytes + size_bytes,
            self.codec,
            payload,
            rows,
            arrived,
            sizes,
            headers[rank],
            payload.rows[rank],
        )
