"""Sparse reduce-scatter and all-gather: each rank sums its shard and sends the largest sums to all."""

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


class Shards(NamedTuple):
    """A tensor of ``numel`` elements split among ``ranks`` ranks, equally many for each.

    A row is ``ranks`` neighboring elements. Each rank owns one element of each row; which one differs from row to row
    (``gravac.kernels.deal``). A selector's elements come in clusters (a layer, a column), and this split gives each
    rank about as many of them. The last row may reach past ``numel``; the missing elements stand for the last one.
    """

    numel: int
    ranks: int
    seed: int

    @classmethod
    def of(cls, numel: int, ranks: int, key: Key) -> "Shards":
        """Return the split of a step and bucket, the same on all ranks."""
        return cls(numel, ranks, key.shared_seed() & _SEED_BITS)

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

    def divide(self, positions: Tensor, x: Tensor, count: int) -> list[Tensor]:
        """Divide chosen elements among their owners, ``count`` for each.

        Args:
            positions: Of the chosen elements, int32, ascending.
            x: The tensor, shape ``(numel,)``.
            count: Elements per owner, at most ``rows``.

        Returns:
            For each rank the rows of its shard, int32 of shape ``(count,)``, ascending. Where an owner has more chosen
            elements, the largest ones; where it has fewer, others fill up.
        """
        order, counts = kernels.deal(positions, self.ranks, self.seed)
        found = []
        for indices in order.split(counts.tolist()):
            own = positions.index_select(0, indices)
            if own.numel() > count:
                own = own.index_select(0, kernels.take_top(x.index_select(0, own).float(), count)[0])
            found.append(_filled(own // self.ranks, count))
        return found


def _filled(rows: Tensor, count: int) -> Tensor:
    """Return ``rows`` (ascending, distinct) with the lowest other rows added until there are ``count``."""
    missing = count - rows.numel()
    if not missing:
        return rows
    low = int((rows < count).sum())
    taken = torch.zeros(count, dtype=torch.bool, device=rows.device)
    taken[rows[:low].long()] = True
    taken[(~taken).nonzero().squeeze(1)[:missing]] = True
    return torch.cat((taken.nonzero().squeeze(1).int(), rows[low:]))


@dataclass(slots=True)
class _InFlight(Exchange):
    message: Tensor  # kept alive until the collective is done
    arrived: Tensor  # uint8, the message of each owner, in rank order
    entries: Entries
    shards: Shards
    header: Header
    share: float

    def mean_into(self, out: Tensor) -> None:
        out.zero_()
        for owner, message in enumerate(self.arrived.view(self.shards.ranks, -1)):
            values, rows = self.entries.unpack(self.header, message, self.header.key._replace(rank=owner))
            kernels.scatter_add(out, self.shards.positions(rows, owner), values, self.share)


class _Elements(NamedTuple):
    """Elements that a rank counts as sent."""

    positions: Tensor
    values: Tensor


class ReduceScatter(Collective):
    """Splits the elements among n ranks by a hash. Each rank sends every owner k/n of its chosen elements. The owner
    sums them and sends its k/n largest sums to all.

    If an owner has more than k/n of a rank's chosen elements, the rank sends the largest; if it has fewer, others fill
    up. About 2k elements pass a link, however many ranks there are, and the sizes follow from (elements, k, n).

    An element that does not fit stays in its sender's error memory. A sum that is not among the largest goes into its
    owner's error memory, as the sum of the ranks' contributions and not as their mean, so that it keeps its weight.
    The total is conserved up to the rounding of the sum. For Top-k and similar codecs, also with quantized values,
    whose rounding error goes into the memories as well.
    """

    name = "reduce-scatter"
    source = (
        "Li and Hoefler 2022, Ok-Topk; Renggli et al. 2019, SparCML. The owner's memory as in DoubleSqueeze, "
        "Tang et al. 2019"
    )
    needs = "a selector that sends a fixed number of elements, such as topk"
    sends_all = False
    sync_free = False

    def exchange(self, layout: Layout, payload: Payload, x: Tensor | None, key: Key) -> Exchange:
        assert payload.support is not None
        n, cf, ranks, rank = layout.numel, layout.cf, self.world_size, self.communicator.rank
        shards = Shards.of(n, ranks, key)
        selector, entries = _entries(Workload.of(layout, ranks))
        x = layout.codec.decode(payload) if x is None else x
        header, sums = Header(layout, key), Header(layout, owner_key(key, rank))

        messages, sent = [], list[_Elements]()
        for owner, rows in enumerate(shards.divide(payload.support.int(), x, entries.values.numel)):
            positions, values = shards.read(x, rows, owner)
            message, values = entries.pack(header, values, rows, _part_key(key, owner))
            messages.append(message)
            if owner != rank:
                sent.append(_Elements(positions, values))
        message = torch.cat(messages)
        arrived = torch.empty_like(message)
        self.communicator.exchange(arrived, message).wait()

        message, own = self._sum(arrived.view(ranks, -1), shards, entries, header, sums)
        sent.append(own)
        everyone = message.new_empty(ranks * message.numel())
        work = self.communicator.gather(everyone, message)
        return _InFlight(
            work,
            2 * (ranks - 1) * entries.nbytes,
            (ranks + 1) * entries.nbytes,
            selector,
            _payload(sent, n, cf, key),
            message,
            everyone,
            entries,
            shards,
            sums,
            self.share,
        )

    def _sum(
        self, messages: Tensor, shards: Shards, entries: Entries, header: Header, sums_header: Header
    ) -> tuple[Tensor, _Elements]:
        """Sum this rank's shard. Return the message for all, and what this rank counts as sent of its shard."""
        rank = self.communicator.rank
        own, others = (
            torch.zeros(shards.rows, device=messages.device, dtype=torch.float32) for _ in range(2)
        )
        for source, message in enumerate(messages):  # in rank order, so that a run can be repeated
            values, rows = entries.unpack(header, message, _part_key(header.key, rank)._replace(rank=source))
            kernels.scatter_add(own if source == rank else others, rows, values)
        total = own + others
        largest, sums = kernels.take_top(total, entries.values.numel)
        message, values = entries.pack(sums_header, sums, largest, sums_header.key)
        # Together the ranks have sent what the message holds. The other ranks count all that they sent to this owner as
        # sent. So this rank takes the rest of it over: it counts it as sent with a minus, and its memory keeps it.
        sent = others.neg_()
        sent.index_copy_(0, largest.long(), own.index_select(0, largest) - (sums - values))
        rows = sent.nonzero().squeeze(1).int()
        return message, _Elements(
            shards.positions(rows, rank), kernels.finite_or_zero(sent.index_select(0, rows))
        )

    @staticmethod
    def fits(compressor: Compressor) -> bool:
        return split_codec(compressor) is not None

    def payload_bytes(self, workload: Workload) -> int:
        return (workload.ranks + 1) * _message_bytes(workload)

    def link_bytes(self, workload: Workload) -> int:
        return 2 * (workload.ranks - 1) * _message_bytes(workload)

    def seconds(self, network: Network, workload: Workload) -> float:
        nbytes, ranks = _message_bytes(workload), workload.ranks
        first = cost.all_to_all(network, ranks, ranks * nbytes)
        # Packed for each owner, unpacked by it, unpacked again by all; and passes over an owner's shard.
        work = cost.handling(5 * ranks + 3, 12 * workload.decoding + 0.8 * workload.numel)
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


def _payload(sent: list[_Elements], numel: int, cf: float, key: Key) -> Payload:
    positions = torch.cat([elements.positions for elements in sent])
    values = torch.cat([elements.values for elements in sent])
    return Payload((values,), positions, numel, cf, key)


def _part_key(key: Key, owner: int) -> Key:
    """Return the key of a rank's message to an owner, whose rounding noise must be its own."""
    return key._replace(seed=key.seed + 1 + owner)
