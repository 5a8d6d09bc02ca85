"""Compressed all-reduce: each rank averages its shard of all payloads and sends the mean, compressed again, to all."""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from gravac.collectives import cost
from gravac.collectives.base import Collective, Exchange, Workload
from gravac.collectives.communicator import Work
from gravac.collectives.cost import Network
from gravac.collectives.messages import HEADER_BYTES, add_header, header_fields, strip_header
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
        """First element of a rank's shard."""
        return min(self.numel, owner * self.size)

    def count(self, owner: int) -> int:
        """Elements of a rank's shard."""
        return self.begin(owner + 1) - self.begin(owner)

    @property
    def message_bytes(self) -> int:
        """Bytes of a message, equal for all shards: shorter ones are padded."""
        return HEADER_BYTES + self.codec.wire_bytes(self.count(0), self.cf, self.dtype)

    def read(self, message: Tensor, payload: Payload, key: Key, owner: int) -> Payload:
        """Unpacks a message with a shard of ``owner``; ``key`` is that of the message's sender.

        Raises:
            ValueError: The message belongs to another exchange.
        """
        count = self.count(owner)
        message = message[: HEADER_BYTES + self.codec.wire_bytes(count, self.cf, self.dtype)]
        parts = strip_header(message, header_fields(payload, self.codec, key, self.dtype), key)
        return self.codec.unpack(parts, count, self.cf, key, self.dtype)

    def write(self, message: Tensor, piece: Payload, payload: Payload, key: Key) -> None:
        """Packs a shard into ``message``, a row of zeros."""
        packed = add_header(piece.parts, header_fields(payload, self.codec, key, self.dtype))
        message[: packed.numel()] = packed


@dataclass(slots=True)
class _InFlight:
    work: Work
    sent_bytes: int
    payload_bytes: int
    codec: Compressor
    payload: Payload
    message: Tensor  # kept alive until the collective is done
    arrived: Tensor  # uint8, the message of each owner, in rank order
    own: Payload
    shards: _Shards
    key: Key

    def mean_into(self, out: Tensor) -> None:
        out.zero_()
        for owner, message in enumerate(self.arrived):
            if count := self.shards.count(owner):
                mean = self.shards.read(message, self.own, _mean_key(self.key, owner), owner)
                begin = self.shards.begin(owner)
                self.shards.codec.decompress(mean, out[begin : begin + count])


class CompressedAllReduce(Collective):
    """Splits the tensor among n ranks. Each rank sends every owner its shard of the payload. The owner averages them,
    compresses the mean with the same codec, and sends it to all.

    About 2 payloads pass a link, however many ranks there are: 2 (n-1)/n of one, against n - 1 in a gather. For
    quantizers that code blocks of elements by themselves, such as ``nearest``, ``bf16``, ``int8``, ``qsgd:bits=4`` and
    ``dither:levels=7``. Not for ``qsgd`` of 2 bits and ``dither`` of 3 levels: rounded twice, their residuals would
    grow without end. Nor for ``dither-subtractive``, whose draws follow from an element's place in the bucket.

    The mean is rounded once more than in a gather. That error goes into the owner's error memory, n times, so that it
    keeps its weight: the ranks' gradients arrive in full, up to the rounding of the sum. (If an owner's own compression
    failed in this step, its memory is not updated and that error is lost.) Shards are whole blocks, so
    buckets with few blocks per rank gain less.
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
        self,
        compressor: Compressor,
        payload: Payload,
        x: Tensor | None,
        cf: float,
        key: Key,
        dtype: torch.dtype,
    ) -> Exchange:
        ranks, rank = self.world_size, self.communicator.rank
        shards = _Shards(compressor, payload.numel, cf, dtype, ranks)
        nbytes, device = shards.message_bytes, payload.values.device
        messages = torch.zeros((ranks, nbytes), dtype=torch.uint8, device=device)
        for message, piece in zip(messages, compressor.divide(payload, shards.size, dtype), strict=False):
            shards.write(message, piece, payload, key)
        arrived = torch.empty_like(messages)
        self.communicator.exchange(arrived.view(-1), messages.view(-1)).wait()

        sent, message = compressor.decode(payload), torch.zeros(nbytes, dtype=torch.uint8, device=device)
        if count := shards.count(rank):
            mean = torch.zeros(count, device=device)
            for source, part in enumerate(arrived):  # in rank order, so that a run can be repeated
                piece = shards.read(part, payload, key._replace(rank=source), rank)
                compressor.decompress(piece, mean, self.share)
            coded = compressor.compress(mean, cf, _mean_key(key, rank), dtype)
            shards.write(message, coded, payload, _mean_key(key, rank))
            # Together the ranks sent the rounded mean. This rank takes over what the rounding left out: n times, as it
            # is a part of the mean.
            compressor.remove(coded, mean)
            add_finite(sent[shards.begin(rank) :][:count], mean, -ranks)
        everyone = messages  # its bytes have been sent
        work = self.communicator.gather(everyone.view(-1), message)
        return _InFlight(
            work,
            2 * (ranks - 1) * nbytes,
            (ranks + 1) * nbytes,
            Dense(),
            Payload((sent,), None, payload.numel, cf, key),
            message,
            everyone,
            payload,
            shards,
            key,
        )

    @staticmethod
    def fits(compressor: Compressor) -> bool:
        # At every CF: a codec without a number of levels of its own takes fewest at the strongest.
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
        return first + cost.all_gather(network, ranks, nbytes) + work


def _shards(workload: Workload) -> _Shards:
    return _Shards(workload.codec, workload.numel, workload.cf, workload.dtype, workload.ranks)


def _mean_key(key: Key, owner: int) -> Key:
    """Key of an owner's mean: its rounding noise is its own."""
    return key._replace(seed=key.seed - 1, rank=owner)
