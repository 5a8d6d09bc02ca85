"""Sparse reduce-scatter and all-gather: each rank sums its share of the elements and sends the largest sums to all."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gravac import kernels
from gravac.collectives import cost
from gravac.collectives.base import Collective, Exchange, Load
from gravac.collectives.communicator import Work
from gravac.collectives.cost import Network
from gravac.collectives.messages import Entries, parts
from gravac.compressors.base import Compressor, Key, Payload, kept


class Shards(NamedTuple):
    """Each of ``ranks`` ranks owns one element of each row of ``ranks`` neighbours, which one differs from row to row
    (``gravac.kernels.draws``).

    A selector's elements come in clusters (a layer, a column); dealt out like this, each rank gets about as many. The
    last row may reach past ``numel``; what is there does not exist and stands for the last element.
    """

    numel: int
    ranks: int
    seed: int

    @property
    def rows(self) -> int:
        """Elements of each shard, those past the end included."""
        return -(-self.numel // self.ranks)

    def places(self, rows: Tensor, owner: int) -> Tensor:
        """Where in the tensor these rows of a rank's shard are (int32)."""
        return kernels.home(rows, owner, self.ranks, self.seed).clamp_(max=self.numel - 1)

    def read(self, x: Tensor, rows: Tensor, owner: int) -> tuple[Tensor, Tensor]:
        """Places and values (float32) of ``x`` in these rows (ascending) of a rank's shard; 0 past the end."""
        places = kernels.home(rows, owner, self.ranks, self.seed)
        outside = places[-1:] >= self.numel  # nothing before the last can be
        places.clamp_(max=self.numel - 1)
        values = x.index_select(0, places).float()
        values[-1:].masked_fill_(outside, 0.0)
        return places, values

    def divide(self, places: Tensor, x: Tensor, count: int) -> list[Tensor]:
        """For each rank, ``count`` rows of its shard (int32, ascending; at most ``rows``): those of ``places`` (int32,
        ascending), of more the ones where ``x`` is largest, of fewer filled up with others."""
        order, counts = kernels.deal(places, self.ranks, self.seed)
        found = []
        for mine in order.split(counts.tolist()):
            mine = places.index_select(0, mine)
            if mine.numel() > count:
                sizes = x.index_select(0, mine).float()
                mine = mine.index_select(0, kernels.take_top(sizes, count)[0])
            found.append(_filled(mine // self.ranks, count))
        return found


def _filled(rows: Tensor, count: int) -> Tensor:
    """``rows`` (ascending, distinct) with the lowest others added until there are ``count``."""
    missing = count - rows.numel()
    if not missing:
        return rows
    low = int((rows < count).sum())
    taken = torch.zeros(count, dtype=torch.bool, device=rows.device)
    taken[rows[:low].long()] = True
    taken[(~taken).nonzero().squeeze(1)[:missing]] = True
    return torch.cat((taken.nonzero().squeeze(1).int(), rows[low:]))


_SEED_BITS = 2**31 - 1


@dataclass(slots=True)
class _Flight:
    work: Work
    sent_bytes: int
    payload_bytes: int
    codec: Compressor
    payload: Payload
    message: Tensor  # kept alive until the collective is done
    arrived: Tensor  # uint8, each owner's message one after the other
    entries: Entries
    shards: Shards
    key: Key
    share: float

    def mean_into(self, out: Tensor) -> None:
        out.zero_()
        for owner, message in enumerate(self.arrived.view(self.shards.ranks, -1)):
            values, rows = self.entries.unpack(message, _told_by(self.key, owner))
            kernels.scatter_add(out, self.shards.places(rows, owner), values, self.share)


class _Part(NamedTuple):
    """Elements that a rank is deemed to have sent."""

    places: Tensor
    values: Tensor


class ReduceScatter(Collective):
    """Elements are dealt out among n ranks by a hash. Each rank sends every owner k/n of its chosen elements (the
    largest; where chance gave an owner fewer, others fill up); the owner sums, and its k/n largest sums go to all.

    So about 2k elements pass a link however many ranks there are, of sizes that follow from (elements, k, n). An
    element that does not fit stays in its sender's error memory. A sum that is not among the largest goes into its
    owner's: as it must weigh the same there, by the ranks' contributions and not by their mean. Conserved to the
    rounding of the sum. For Top-k and the like, also with quantised values, whose rounding is owed as well.
    """

    name = "reduce-scatter"
    source = (
        "Li and Hoefler 2022, Ok-Topk; Renggli et al. 2019, SparCML. The owner's memory as in DoubleSqueeze, "
        "Tang et al. 2019"
    )
    whole = False

    def exchange(
        self,
        compressor: Compressor,
        payload: Payload,
        x: Tensor | None,
        cf: float,
        key: Key,
        dtype: torch.dtype,
    ) -> Exchange:
        made = parts(compressor)
        assert made is not None
        assert payload.support is not None
        chooser, coder = made
        n, ranks, rank = payload.numel, self.world_size, self.communicator.rank
        shards = Shards(n, ranks, key.shared_seed() & _SEED_BITS)
        entries = Entries(coder, dtype, cf, _count(n, cf, ranks), shards.rows)
        x = compressor.decode(payload) if x is None else x

        messages, sent = [], list[_Part]()
        for owner, rows in enumerate(shards.divide(payload.support.int(), x, entries.count)):
            places, values = shards.read(x, rows, owner)
            message, values = entries.pack(values, rows, _sent_to(key, owner))
            messages.append(message)
            if owner != rank:
                sent.append(_Part(places, values))
        message = torch.cat(messages)
        arrived = torch.empty_like(message)
        self.communicator.exchange(arrived, message).wait()

        told = _told_by(key, rank)
        message, mine = self._sum(arrived.view(ranks, -1), shards, entries, _sent_to(key, rank), told)
        sent.append(mine)
        everyone = message.new_empty(ranks * message.numel())
        work = self.communicator.gather(everyone, message)
        return _Flight(
            work,
            2 * (ranks - 1) * entries.nbytes,
            (ranks + 1) * entries.nbytes,
            chooser,
            _payload(sent, n, cf, key),
            message,
            everyone,
            entries,
            shards,
            key,
            self.share,
        )

    def _sum(
        self, messages: Tensor, shards: Shards, entries: Entries, key: Key, told: Key
    ) -> tuple[Tensor, _Part]:
        """What this rank, as an owner, tells of its shard; and what it is thereby deemed to have sent of it."""
        own, others = (torch.zeros(shards.rows, device=messages.device) for _ in range(2))
        for source, message in enumerate(messages):  # in rank order, so that a run can be repeated
            values, rows = entries.unpack(message, key._replace(rank=source))
            kernels.scatter_add(own if source == self.communicator.rank else others, rows, values)
        total = own + others
        largest, sums = kernels.take_top(total, entries.count)
        message, values = entries.pack(sums, largest, told)
        # The ranks together sent what is told. This one takes over the rest of what the others sent: -1 times it.
        sent = others.neg_()
        sent.index_copy_(0, largest.long(), own.index_select(0, largest) - (sums - values))
        rows = sent.nonzero().squeeze(1).int()
        return message, _Part(shards.places(rows, self.communicator.rank), sent.index_select(0, rows))

    @staticmethod
    def fits(compressor: Compressor) -> bool:
        return parts(compressor) is not None

    def payload_bytes(self, load: Load) -> int:
        return (load.ranks + 1) * _message_bytes(load)

    def link_bytes(self, load: Load) -> int:
        return 2 * (load.ranks - 1) * _message_bytes(load)

    def seconds(self, network: Network, load: Load) -> float:
        nbytes = _message_bytes(load)
        first = cost.all_to_all(network, load.ranks, load.ranks * nbytes)
        # Packed for each owner, unpacked by it, unpacked again by all; and passes over an owner's share.
        work = cost.handling(5 * load.ranks + 3, 12 * load.decoding + 0.8 * load.numel)
        return first + cost.all_gather(network, load.ranks, nbytes) + work


def _count(numel: int, cf: float, ranks: int) -> int:
    """Elements a rank sends to each owner, and an owner tells of."""
    return -(-kept(numel, cf) // ranks)


def _message_bytes(load: Load) -> int:
    made = parts(load.codec)
    assert made is not None
    rows = -(-load.numel // load.ranks)
    return Entries(made[1], load.dtype, load.cf, _count(load.numel, load.cf, load.ranks), rows).nbytes


def _payload(sent: list[_Part], numel: int, cf: float, key: Key) -> Payload:
    places = torch.cat([part.places for part in sent])
    values = torch.cat([part.values for part in sent])
    return Payload((values,), places, numel, cf, key)


def _sent_to(key: Key, owner: int) -> Key:
    """Of the sender's rounding noise: of its own for each message."""
    return key._replace(seed=key.seed + 1 + owner)


def _told_by(key: Key, owner: int) -> Key:
    return key._replace(seed=key.seed - 1, rank=owner)
