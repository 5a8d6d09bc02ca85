"""Compressed all-reduce: each rank averages its shard of all payloads, compresses the mean and sends it to all."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import torch
from torch import Tensor

from gravac.collectives import cost
from gravac.collectives.base import Collective, Exchange, Workload
from gravac.collectives.cost import Network
from gravac.collectives.messages import HEADER_BYTES, SIZE_BYTES, Header, exchange_sizes, owner_key, padded
from gravac.compressors.base import Compressor, Key, Layout, Payload
from gravac.compressors.dense import Dense
from gravac.kernels import add_finite
from gravac.protocol import LARGEST_CF

_DENSE = Dense()
COARSE = 12.5
"""A codec that sends this many times fewer bytes than float32, without entropy coding, is not rounded twice unless the
user asks for it. An LSTM with 3 levels (17x) and 4 ranks ended at +4.2 % held-out loss with the compressed all-reduce,
and at +1.0 % gathered."""


class _Shards:
    """The shards of a bucket, one per rank: equally many whole blocks for each, so the last ones may be shorter or
    empty. Its payloads are divided.
    """

    def __init__(self, workload: Workload) -> None:
        codec, numel, cf, dtype, ranks = workload
        block = codec.block_of(cf)
        assert block is not None
        self.size = block * max(1, ceil(numel / (block * ranks)))
        """Elements of each shard but the last ones."""
        self.begins = [min(numel, owner * self.size) for owner in range(ranks)]
        """First element of each."""
        counts = [min(numel, begin + self.size) - begin for begin in self.begins]
        made = {count: codec.layout(count, cf, dtype) for count in counts}
        self.layouts = [made[count] for count in counts]
        self.sizes = [HEADER_BYTES + layout.nbytes for layout in self.layouts]
        """Bytes of each message; the expected ones if sizes vary."""


_shards = lru_cache(maxsize=4096)(_Shards)  # the same few buckets and CFs in every step


@dataclass(slots=True)
class _InFlight(Exchange):
    message: Tensor  # kept alive until the collective is done
    arrived: Tensor  # uint8, the message of each owner, in rank order
    sizes: list[int]  # bytes of each message without padding
    shards: _Shards
    header: Header

    def mean_into(self, out: Tensor) -> None:
        out.zero_()
        for owner, layout in enumerate(self.shards.layouts):
            if layout.numel:
                message = self.header.strip(self.arrived[owner, : self.sizes[owner]], owner)
                mean = layout.unpack(message, self.header.key._replace(rank=owner))
                layout.codec.decompress(mean, out[self.shards.begins[owner] :][: layout.numel])

    def tensors(self) -> Iterator[Tensor]:
        yield from (*Exchange.tensors(self), self.message, self.arrived)


class CompressedAllReduce(Collective):
    """Splits the tensor among n ranks. Each rank sends every owner its shard of the payload. The owner averages them,
    compresses the mean with the same codec, and sends it to all.

    About 2 payloads pass a link, however many ranks there are: 2 (n-1)/n of one, against n - 1 in a gather. For
    quantizers that code blocks of elements by themselves, such as ``nearest``, ``bf16``, ``int8``, ``qsgd:bits=4`` and
    ``dither:levels=7``. It refuses ``qsgd`` of 2 bits and ``dither`` of 3 levels, because their residuals would grow
    without end if rounded twice. It also refuses ``dither-subtractive``, whose draws follow from an element's position
    in the bucket.

    The mean is rounded once more than in a gather. That error goes into the owner's error memory, n times, so that it
    keeps its weight: the ranks' gradients arrive in full, up to the rounding of the sum. (If an owner's own compression
    failed in this step, its memory is not updated and that error is lost.) Shards are whole blocks, so
    buckets with few blocks per rank gain less.

    Where sizes vary, ranks exchange theirs before both rounds, and wait, then pad their messages to the longest.
    """

    name = "compressed-all-reduce"
    source = (
        "Tang et al. 2021, 1-bit Adam, §5, compressed allreduce. The owner's memory as in DoubleSqueeze, Tang et al. "
        "2019"
    )
    needs = (
        "a quantizer that codes blocks by themselves and errs by less than half at any CF, such as nearest"
    )

    def exchange(self, layout: Layout, payload: Payload, x: Tensor | None, key: Key) -> Exchange:
        codec, ranks, rank = layout.codec, self.world_size, self.communicator.rank
        nothing = payload.values.new_empty(0, dtype=torch.uint8)
        shards = _shards(Workload.of(layout, ranks))
        header = Header(layout, key)
        messages = [header.pack(piece.parts) for piece in codec.divide(payload, shards.size, layout.dtype)]
        messages += [nothing] * (ranks - len(messages))
        fixed = layout.specs is not None
        sizes = [shards.sizes] * ranks if fixed else exchange_sizes(self.communicator, messages)
        rows = padded(messages, max(map(max, sizes)))
        arrived = torch.empty_like(rows)
        self.communicator.exchange(arrived.view(-1), rows.view(-1)).wait()

        sent, message, own = codec.decode(payload), nothing, shards.layouts[rank]
        header_of_mean = Header(layout, owner_key(key, rank))
        if own.numel:
            mean = torch.zeros(own.numel, device=nothing.device, dtype=torch.float32)
            for source, part in enumerate(arrived):  # in rank order, so that a run can be repeated
                piece = header.strip(part[: sizes[source][rank]], source)
                codec.decompress(own.unpack(piece, key._replace(rank=source)), mean, self.share)
            coded = codec.compress(mean, layout.cf, header_of_mean.key, layout.dtype)
            message = header_of_mean.pack(coded.parts)
            # Together the ranks have sent the rounded mean. What the rounding left out would be lost, so this rank
            # counts it as not sent: n times, because what its memory sends later will be divided by n.
            codec.remove(coded, mean)
            add_finite(sent[shards.begins[rank] :][: own.numel], mean, -ranks)
        means = shards.sizes if fixed else [row[0] for row in exchange_sizes(self.communicator, [message])]
        message = padded([message], max(means))
        everyone = message.new_empty((ranks, max(means)))
        work = self.communicator.gather(everyone.view(-1), message[0])
        first, second = rows.shape[1], everyone.shape[1]
        announced = 0 if fixed else SIZE_BYTES * (ranks + 1)
        return _InFlight(
            work,
            (ranks - 1) * (first + second + announced),
            ranks * first + second + announced,
            _DENSE,
            Payload((sent,), None, payload.numel, payload.cf, key),
            message,
            everyone,
            means,
            shards,
            header_of_mean,
        )

    @staticmethod
    def fits(compressor: Compressor) -> bool:
        # At every CF, so that all steps can use it. Where levels follow from the CF, the strongest has the fewest.
        return all(compressor.block_of(cf) is not None for cf in (1.0, LARGEST_CF))

    def payload_bytes(self, workload: Workload) -> int:
        return (workload.ranks + 1) * _message_bytes(workload)

    def link_bytes(self, workload: Workload) -> int:
        return 2 * (workload.ranks - 1) * _message_bytes(workload)

    @staticmethod
    def payloads_decoded(ranks: int) -> int:
        return 3  # its own, its shard of each, and the mean

    def seconds(self, network: Network, workload: Workload) -> float:
        nbytes, ranks = _message_bytes(workload), workload.ranks
        first = cost.all_to_all(network, ranks, ranks * nbytes)
        # Payloads are divided and decoded, and a shard is compressed again.
        decoding = self.payloads_decoded(ranks) * workload.decoding
        work = cost.handling(3 * ranks, decoding + (0.6 + 1 / ranks) * workload.numel)
        if not workload.codec.traits.fixed_size:
            work += cost.all_gather(network, ranks, SIZE_BYTES * ranks)
            work += cost.all_gather(network, ranks, SIZE_BYTES)
        return first + cost.all_gather(network, ranks, nbytes) + work


def _message_bytes(workload: Workload) -> int:
    """Return the bytes of a message of the longest shard; the expected ones if sizes vary."""
    return _shards(workload).sizes[0]


def is_coarse(workload: Workload) -> bool:
    """Return whether payloads are too coarse to be rounded twice."""
    return 4 * workload.numel > COARSE * workload.plain_bytes
