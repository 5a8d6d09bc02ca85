"""Compressed all-reduce: each rank averages its shard of all payloads, compresses the mean and sends it to all."""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from gravac.collectives import cost
from gravac.collectives.base import Collective, Exchange, Workload
from gravac.collectives.cost import Network
from gravac.collectives.messages import (
    HEADER_BYTES,
    SIZE_BYTES,
    exchange_sizes,
    pack_payload,
    padded,
    unpack_payload,
)
from gravac.compressors.base import Compressor, Key, Payload
from gravac.compressors.dense import Dense
from gravac.kernels import add_finite

_STRONGEST = 1e9


@dataclass(frozen=True, slots=True)
class _Shards:
    """The shards of a bucket, one per rank: equally many whole blocks for each, so the last ones may be shorter or
    empty.
    """

    codec: Compressor
    numel: int
    cf: float
    dtype: torch.dtype
    ranks: int

    @property
    def size(self) -> int:
        """Elements of each shard but the last ones."""
        block = self.codec.block_of(self.cf)
        assert block is not None
        return block * max(1, ceil(self.numel / (block * self.ranks)))

    def begin(self, owner: int) -> int:
        """Return the first element of a rank's shard."""
        return min(self.numel, owner * self.size)

    def count(self, owner: int) -> int:
        """Return the number of elements of a rank's shard."""
        return self.begin(owner + 1) - self.begin(owner)

    @property
    def message_bytes(self) -> int:
        """Bytes of a message of the longest shard; the expected ones if sizes vary."""
        return HEADER_BYTES + self.codec.wire_bytes(self.count(0), self.cf, self.dtype)

    def read(self, message: Tensor, payload: Payload, key: Key, owner: int) -> Payload:
        """Unpack a message with a shard of ``owner``; ``key`` is that of the message's sender.

        Raises:
            ValueError: The message belongs to another exchange, or was damaged.
        """
        parts = unpack_payload(message, payload, self.codec, key, self.dtype)
        return self.codec.layout(self.count(owner), self.cf, self.dtype).unpack(parts, key)

    def sizes(self) -> list[int]:
        """Return the bytes of each owner's message, for a codec of fixed size. Messages are padded to the longest."""
        wire = [self.codec.wire_bytes(self.count(owner), self.cf, self.dtype) for owner in range(self.ranks)]
        return [HEADER_BYTES + nbytes for nbytes in wire]


@dataclass(slots=True)
class _InFlight(Exchange):
    message: Tensor  # kept alive until the collective is done
    arrived: Tensor  # uint8, the message of each owner, in rank order
    sizes: list[int]  # bytes of each message without padding
    own: Payload
    shards: _Shards
    key: Key

    def mean_into(self, out: Tensor) -> None:
        out.zero_()
        for owner, (message, size) in enumerate(zip(self.arrived, self.sizes, strict=True)):
            if count := self.shards.count(owner):
                mean = self.shards.read(message[:size], self.own, _mean_key(self.key, owner), owner)
                begin = self.shards.begin(owner)
                self.shards.codec.decompress(mean, out[begin : begin + count])


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

    def exchange(
        self, compressor: Compressor, payload: Payload, x: Tensor | None, key: Key, dtype: torch.dtype
    ) -> Exchange:
        ranks, rank, cf = self.world_size, self.communicator.rank, payload.cf
        shards = _Shards(compressor, payload.numel, cf, dtype, ranks)
        device, nothing = payload.values.device, payload.values.new_empty(0, dtype=torch.uint8)
        messages = [
            pack_payload(payload, compressor, key, dtype, piece)
            for piece in compressor.divide(payload, shards.size, dtype)
        ]
        messages += [nothing] * (ranks - len(messages))
        sizes = self._sizes(shards, messages)
        rows = padded(messages, max(map(max, sizes)))
        arrived = torch.empty_like(rows)
        self.communicator.exchange(arrived.view(-1), rows.view(-1)).wait()

        sent, message = compressor.decode(payload), nothing
        if count := shards.count(rank):
            mean = torch.zeros(count, device=device, dtype=torch.float32)
            for source, part in enumerate(arrived):  # in rank order, so that a run can be repeated
                piece = shards.read(part[: sizes[source][rank]], payload, key._replace(rank=source), rank)
                compressor.decompress(piece, mean, self.share)
            coded = compressor.compress(mean, cf, _mean_key(key, rank), dtype)
            message = pack_payload(payload, compressor, _mean_key(key, rank), dtype, coded)
            # Together the ranks have sent the rounded mean. What the rounding left out would be lost, so this rank
            # counts it as not sent: n times, because what its memory sends later will be divided by n.
            compressor.remove(coded, mean)
            add_finite(sent[shards.begin(rank) :][:count], mean, -ranks)
        means = [row[0] for row in self._sizes(shards, [message])]
        message = padded([message], max(means))
        everyone = message.new_empty((ranks, max(means)))
        work = self.communicator.gather(everyone.view(-1), message[0])
        first, second = rows.shape[1], everyone.shape[1]
        announced = 0 if compressor.traits.fixed_size else SIZE_BYTES * (ranks + 1)
        return _InFlight(
            work,
            (ranks - 1) * (first + second + announced),
            ranks * first + second + announced,
            Dense(),
            Payload((sent,), None, payload.numel, cf, key),
            message,
            everyone,
            means,
            payload,
            shards,
            key,
        )

    def _sizes(self, shards: _Shards, messages: list[Tensor]) -> list[list[int]]:
        """Return the bytes of the messages of each rank. Where sizes vary, they are exchanged."""
        if shards.codec.traits.fixed_size:
            sizes = shards.sizes()
            return [sizes] * shards.ranks if len(messages) > 1 else [[size] for size in sizes]
        return exchange_sizes(self.communicator, messages)

    @staticmethod
    def fits(compressor: Compressor) -> bool:
        # At every CF, so that all steps can use it. Where levels follow from the CF, the strongest has the fewest.
        return all(compressor.block_of(cf) is not None for cf in (1.0, _STRONGEST))

    def payload_bytes(self, workload: Workload) -> int:
        return (workload.ranks + 1) * _shards(workload).message_bytes

    def link_bytes(self, workload: Workload) -> int:
        return 2 * (workload.ranks - 1) * _shards(workload).message_bytes

    @staticmethod
    def payloads_decoded(ranks: int) -> int:
        return 3  # its own, its shard of each, and the mean

    def seconds(self, network: Network, workload: Workload) -> float:
        nbytes, ranks = _shards(workload).message_bytes, workload.ranks
        first = cost.all_to_all(network, ranks, ranks * nbytes)
        # Payloads are divided and decoded, and a shard is compressed again.
        decoding = self.payloads_decoded(ranks) * workload.decoding
        work = cost.handling(3 * ranks, decoding + (0.6 + 1 / ranks) * workload.numel)
        if not workload.codec.traits.fixed_size:
            work += cost.all_gather(network, ranks, SIZE_BYTES * ranks)
            work += cost.all_gather(network, ranks, SIZE_BYTES)
        return first + cost.all_gather(network, ranks, nbytes) + work


def _shards(workload: Workload) -> _Shards:
    return _Shards(workload.codec, workload.numel, workload.cf, workload.dtype, workload.ranks)


def _mean_key(key: Key, owner: int) -> Key:
    """Return the key of an owner's mean, whose rounding noise must be independent of that of the payloads."""
    return key._replace(seed=key.seed - 1, rank=owner)
