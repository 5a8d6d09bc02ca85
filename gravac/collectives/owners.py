"""Sparse both ways: each rank sends every owner the largest of its shard, and the owner the largest sums to all."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gravac import kernels
from gravac.collectives import cost
from gravac.collectives.base import Collective, Exchange, Workload
from gravac.collectives.cost import Network
from gravac.collectives.messages import Entries, Header, owner_key, split_codec
from gravac.compressors.base import Compressor, Key, Layout, Payload, kept_count

_SEED_BITS = 2**31 - 1
PARTS = 2
"""One of so many parts of what waits of an element arrives where its owner sends it."""


def seed_of(key: Key) -> int:
    """Return the seed of a split, the same on all ranks."""
    return key.shared_seed() & _SEED_BITS


class Shards(NamedTuple):
    """A tensor of ``numel`` elements split among ``ranks`` ranks, equally many for each.

    A row is ``ranks`` neighboring elements. Each rank owns one element of each row; which one differs from row to row
    (``gravac.kernels.draws``). A selector's elements come in clusters (a layer, a column), and this split gives each
    rank about as many of them. The last row may reach past ``numel``; the missing elements stand for the last one.
    """

    numel: int
    ranks: int
    seed: int

    @classmethod
    def of(cls, numel: int, ranks: int, key: Key) -> "Shards":
        """Return the split of a step and bucket, the same on all ranks."""
        return cls(numel, ranks, seed_of(key))

    @property
    def rows(self) -> int:
        """Elements of each shard, those past the end included."""
        return -(-self.numel // self.ranks)

    def positions(self, rows: Tensor, owner: int) -> Tensor:
        """Return the positions in the tensor (int32) of these rows of a rank's shard."""
        return kernels.global_positions(rows, owner, self.ranks, self.seed).clamp_(max=self.numel - 1)

    def read(self, x: Tensor, rows: Tensor, owner: int) -> tuple[Tensor, Tensor]:
        """Read these rows (ascending) of a rank's shard of ``x``.

        Returns:
            Positions (int32) and values (float32); the value is 0 past the end.
        """
        positions = kernels.global_positions(rows, owner, self.ranks, self.seed)
        outside = positions[-1:] >= self.numel  # only the last one can be
        positions.clamp_(max=self.numel - 1)
        values = x.index_select(0, positions).float()
        values[-1:].masked_fill_(outside, 0.0)
        return positions, values


@dataclass(slots=True)
class _InFlight(Exchange):
    message: Tensor  # kept alive until the collective is done
    arrived: Tensor  # uint8, the message of each owner, in rank order
    entries: Entries
    shards: Shards
    header: Header
    share: float

    def __post_init__(self) -> None:
        self.of = PARTS

    def mean_into(self, out: Tensor) -> None:
        out.zero_()
        if self.senders is not None:
            self.senders.zero_()
        for owner, message in enumerate(self.arrived):
            key = self.header.key._replace(rank=owner)
            values, rows = self.entries.unpack(self.header, message, key)
            positions = self.shards.positions(rows, owner)
            kernels.scatter_add(out, positions, values, self.share)
            if self.senders is not None:
                self.senders.index_fill_(0, positions.long().clamp_(0, len(self.senders) - 1), 1)

    def tensors(self) -> Iterator[Tensor]:
        yield from (*Exchange.tensors(self), self.message, self.arrived)


class Owners(Collective):
    """Splits the elements among n ranks by a hash, the same in all steps. Each rank sends every owner the k/n largest
    of its shard. The owner adds them to its own gradient and sends the k/n largest sums to all.

    About 2k elements pass a link, however many ranks there are. The sizes follow from (elements, k, n), so a bucket
    takes one all-to-all and one all-gather. Of its own shard a rank sends nothing: it adds its gradient whole, and
    without rounding.

    An element that was not sent stays in its sender's error memory. A sum that was not sent stays in its owner's, as
    the sum of the ranks' contributions and not as their mean, so that it keeps its weight. The total is conserved up to
    the rounding of the sum. For Top-k and similar codecs, also with quantized values, whose rounding error goes into
    the memories as well.

    About half of what waits of an element is at its owner, and half at the ranks. So half of it counts as arrived
    (``gravac.optim``).
    """

    name = "owners"
    source = (
        "Li and Hoefler 2022, Ok-Topk; Renggli et al. 2019, SparCML. The owner's memory as in DoubleSqueeze, "
        "Tang et al. 2019"
    )
    needs = "a selector that sends a fixed number of elements, such as topk"
    sends_all = False

    def exchange(self, layout: Layout, payload: Payload, x: Tensor | None, key: Key) -> Exchange:
        n, ranks, rank = layout.numel, self.world_size, self.communicator.rank
        shards = Shards.of(n, ranks, key._replace(step=0))
        selector, entries = _entries(Workload.of(layout, ranks))
        count = entries.values.numel
        if x is None:  # a blank payload has the same value everywhere
            assert payload.support is not None
            x = layout.codec.decode(payload).index_select(0, payload.support[:1].int()).expand(n)
        header, sums = Header(layout, key), Header(layout, owner_key(key, rank))

        every = torch.arange(shards.rows, dtype=torch.int32, device=x.device)
        mine, own = shards.read(x, every, rank)
        up = torch.empty((ranks, entries.nbytes), dtype=torch.uint8, device=x.device)
        up[rank] = 0  # goes nowhere
        places, sent = [], []
        for owner in range(ranks):
            if owner == rank:
                continue
            positions, values = shards.read(x, every, owner)
            rows, largest = kernels.take_top(values, count)
            message, coded = entries.pack(header, largest, rows, _part_key(key, owner))
            up[owner] = message
            places.append(positions.index_select(0, rows))
            sent.append(coded)
        came = torch.empty_like(up)
        self.communicator.exchange(came.view(-1), up.view(-1)).wait()

        total = own.clone()
        for source, message in enumerate(came):  # in rank order, so that a run can be repeated
            if source != rank:
                values, rows = entries.unpack(header, message, _part_key(key, rank)._replace(rank=source))
                kernels.scatter_add(total, rows, values)
        rows, largest = kernels.take_top(total, count)
        message, coded = entries.pack(sums, largest, rows, sums.key)
        everyone = message.new_empty((ranks, entries.nbytes))
        work = self.communicator.gather(everyone.view(-1), message)
        # Together the ranks have sent what this message holds. The others count all that they sent here as sent, so
        # this rank takes the rest over: what it counts as sent leaves the rest of the sums in its memory.
        kernels.scatter_add(total, rows, coded, -1.0)
        places.append(mine)
        sent.append(kernels.finite_or_zero(own.sub_(total)))
        return _InFlight(
            work,
            2 * (ranks - 1) * entries.nbytes,
            (ranks + 1) * entries.nbytes,
            selector,
            Payload((torch.cat(sent),), torch.cat(places), n, layout.cf, key),
            message,
            everyone,
            entries,
            shards,
            sums,
            self.share,
        )

    @staticmethod
    def fits(compressor: Compressor) -> bool:
        return split_codec(compressor) is not None

    def payload_bytes(self, workload: Workload) -> int:
        return (workload.ranks + 1) * _message_bytes(workload)

    def link_bytes(self, workload: Workload) -> int:
        return 2 * (workload.ranks - 1) * _message_bytes(workload)

    @staticmethod
    def payloads_decoded(ranks: int) -> int:
        return 2  # as many elements as come for its shard, and as all sums have

    def seconds(self, network: Network, workload: Workload) -> float:
        nbytes, ranks = _message_bytes(workload), workload.ranks
        first = cost.all_to_all(network, ranks, ranks * nbytes)
        # The tensor is dealt out and its shards searched; messages are packed for owners, unpacked there and by all.
        work = cost.handling(4 * ranks, 9 * workload.decoding + 1.3 * workload.numel)
        return first + cost.all_gather(network, ranks, nbytes) + work


def _entries(workload: Workload) -> tuple[Compressor, Entries]:
    """Return the selector of a codec, and the layout of what a rank sends to each owner and an owner to all."""
    codec, numel, cf, dtype, ranks = workload
    codecs = split_codec(codec)
    assert codecs is not None
    count = -(-kept_count(numel, cf) // ranks)
    return codecs[0], Entries(codecs[1], count, -(-numel // ranks), dtype)


def _message_bytes(workload: Workload) -> int:
    return _entries(workload)[1].nbytes


def _part_key(key: Key, owner: int) -> Key:
    """Return the key of a rank's message to an owner, whose rounding noise must be its own."""
    return key._replace(seed=key.seed + 1 + owner)
