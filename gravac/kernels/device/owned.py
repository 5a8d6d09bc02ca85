"""The largest elements of each rank's shard, and the largest sums of them, in launches that do not grow with ranks.

A gradient is cut into rows of as many neighboring tiles as there are ranks. Each rank owns one tile of each row; a hash
of the row says which (``gravac.kernels.draws``). So a shard is whole tiles, and what a rank sends an owner is a message
of ``device.tiled``. An owner adds what arrives to its own gradient and residual of its shard, which no message rounds,
and sends all ranks such a message of the sums: each tile of the mean is in one message.

What is not sent stays in the residual; of the own shard it is a sum over ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gravac.kernels import backend
from gravac.kernels.device import tiled
from gravac.kernels.device.tiled import TiledBuffers, TiledGroup, TiledLayout, TiledStep, Values
from gravac.kernels.draws import global_positions

TILES = (tiled.TILE, 512)
"""Elements of a tile; the smaller ones are for gradients of few rows."""
ROWS = 4
"""Rows that a gradient has at least. Large elements come in clusters, and with few rows some owners have most."""


def tile_of(numel: int, ranks: int) -> int | None:
    """Return the elements of a gradient's tiles; None: it is too small or too large for shards of tiles."""
    found = next((tile for tile in TILES if numel >= ROWS * ranks * tile), None)
    return None if found is None or -(-numel // found) > tiled.MOST_TILES else found


@dataclass(frozen=True)
class OwnedLayout:
    """Which tiles are whose, and the messages of shards.

    Attributes:
        numel: Elements of the gradient.
        capacity: Elements that ranks send an owner, and an owner sends of its sums.
        values: How values are sent.
        ranks: Ranks that exchange.
        seed: Seed of the hash, 0 to 2^31 - 1, equal on all ranks.
        tile: Elements of a tile.
        shard: The layout of messages.
    """

    numel: int
    capacity: int
    values: Values
    ranks: int
    seed: int
    tile: int
    shard: TiledLayout = field(init=False)

    def __post_init__(self) -> None:
        rows = -(-self.numel // (self.ranks * self.tile))
        shard = TiledLayout(rows * self.tile, self.capacity, self.values, tile=self.tile)
        object.__setattr__(self, "shard", shard)

    def matches(self, numel: int, capacity: int, values: Values, ranks: int) -> bool:
        """Return whether it is that of such messages."""
        return (self.numel, self.capacity, self.values, self.ranks) == (numel, capacity, values, ranks)

    @property
    def payload_bytes(self) -> int:
        """Bytes that a rank hands to collectives."""
        return (self.ranks + 1) * self.shard.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes that wait on a rank until a step's end, divided by the ranks: messages to owners and those of all."""
        return 2 * self.shard.nbytes

    @property
    def link_bytes(self) -> int:
        """Bytes that a rank puts on its link."""
        return 2 * (self.ranks - 1) * self.shard.nbytes

    def deal(self, device: torch.device) -> Tensor:
        """Return the tiles of each shard, int64 of shape ``(ranks, rows)``."""
        rows = torch.arange(self.shard.tiles, dtype=torch.int32, device=device)
        dealt = [global_positions(rows, owner, self.ranks, self.seed) for owner in range(self.ranks)]
        return torch.stack(dealt).long()

    def elements(self, tiles: Tensor) -> Tensor:
        """Return the elements of a shard's tiles, int64; those of the last row may not exist."""
        inside = torch.arange(self.tile, dtype=torch.int64, device=tiles.device)
        return (tiles.unsqueeze(1) * self.tile + inside).flatten()

    def shards(self, x: Tensor, tiles: Tensor) -> Tensor:
        """Return tiles of ``x``, a row for each shard, with zeros for what does not exist."""
        missing = self.shard.numel * self.ranks - self.numel
        padded = torch.nn.functional.pad(x, (0, missing)).view(-1, self.tile)
        return padded[tiles].view(*tiles.shape[:-1], -1)


class OwnedBuffers(TiledBuffers):
    """What a bucket keeps on its device for such messages: of each shard as of a bucket in whole messages, and of the
    own shard for its sums.

    Args:
        whole: Which tiles are whose.
        own: This rank.
        device: Device of the tensors.
    """

    message: Tensor
    """int32, shape ``(ranks, words)``: to each owner; the row of this rank is that of its sums, to all. ``places`` has
    what each holds, as places in the gradient."""
    whole: OwnedLayout
    arrived: Tensor
    """int32, shape ``(ranks, words)``: from each rank for this owner, and then from each owner."""

    def __init__(self, whole: OwnedLayout, own: int, device: torch.device) -> None:
        super().__init__(whole.shard, device, whole.ranks)
        self.whole, self.own = whole, own
        self.energy = torch.zeros(whole.ranks, dtype=torch.float64, device=device)
        """Energy of what is chosen from, by shard."""
        self.came = torch.zeros(whole.shard.numel, dtype=torch.float32, device=device)
        """The sum of what arrived for this owner."""

    def clear(self) -> None:
        super().clear()
        self.energy.zero_()

    def sent_places(self) -> Tensor:
        """Return where the residual has lost or gained: what was sent to owners, and all of the own shard."""
        mine = self.whole.elements(self.whole.deal(self.places.device)[self.own]).int()
        # What does not exist stands for the first one.
        return torch.cat([self.places, torch.where(mine < self.whole.numel, mine, mine[0])])


class OwnedGroup(TiledGroup):
    """Buckets whose messages are one, on their device.

    Args:
        members: What the buckets keep. Their messages become columns of this one's.
        ranks: How many exchange.
    """

    def __init__(self, members: Sequence[TiledBuffers], ranks: int) -> None:
        super().__init__(members, ranks)
        words = [one.layout.words for one in members]
        self.message = torch.zeros_like(self.arrived)
        """A row for each owner."""
        for one, message in zip(members, self.message.split(words, 1), strict=True):
            one.message = message


def _buffers(step: TiledStep) -> OwnedBuffers:
    assert isinstance(step.buffers, OwnedBuffers)
    return step.buffers


def first_level(buffers: TiledBuffers, g: Tensor, residual: Tensor | None) -> None:
    """Set the levels by sorting each shard of gradient + residual once. Sums have their own from the next step on."""
    assert isinstance(buffers, OwnedBuffers)
    p = g.float().nan_to_num(0.0, 0.0, 0.0)
    sizes = (p if residual is None else p + residual).abs()
    each = buffers.whole.shards(sizes, buffers.whole.deal(g.device))
    least = each.topk(buffers.layout.capacity, sorted=True).values[:, -1]
    buffers.level.view(-1, 2).copy_((least * tiled.LOWER).unsqueeze(1))
    buffers.ready = True


def encode(group: OwnedGroup, steps: Sequence[TiledStep]) -> None:
    """Write the messages to owners, leave what is not sent of gradient + residual, and measure. ``add_up`` follows.

    Elements of a gradient that are not finite count as 0, except in its energy.

    Args:
        group: The buckets.
        steps: Steps of those buckets, all or some, whose gradients have one dtype. The others' messages stay.
    """
    if not steps:
        return
    if backend.on_gpu(steps[0].gradient, group.message):
        from gravac.kernels.cuda import tiled as on_gpu

        on_gpu.encode(group, steps)
        return
    for step in steps:
        _encode(step)


def _encode(step: TiledStep) -> None:
    buffers, raw = _buffers(step), step.gradient.float()
    value = torch.where(raw.isfinite(), raw, 0.0)
    if step.residual is not None:
        value = value + step.residual
    step.rest.copy_(value)
    whole, sent_of = buffers.whole, torch.zeros_like(value)
    tiles = whole.deal(value.device)
    shards, held = whole.shards(value, tiles), buffers.places.view(whole.ranks, -1)
    for owner in range(whole.ranks):
        if owner == buffers.own:
            continue
        places, values, sent = _chosen(buffers, owner, shards[owner])
        at = whole.elements(tiles[owner])[places]
        step.rest.index_copy_(0, at, values - sent)
        sent_of.index_copy_(0, at, sent)
        _hold(held[owner], at)
    _measure_sent(step.row, torch.where(sent_of != 0.0, raw, 0.0), value, sent_of)
    x, p = raw.double(), value.double()
    step.row[[0, 1, 4]] += torch.stack([x.dot(x), p.dot(p), p.dot(x)])


def _chosen(buffers: OwnedBuffers, owner: int, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Write a message of the largest elements of a shard. Return their places in it, their values and what is sent."""
    level = buffers.level.view(-1, 2)[owner]
    places, level[1] = tiled.chosen(buffers.layout, level[0], value)
    values = value.index_select(0, places)
    return places, values, tiled.write(buffers.layout, buffers.message[owner], places, values)


def _hold(held: Tensor, at: Tensor) -> None:
    if at.numel():
        held.fill_(int(at[0]))
        held[: at.numel()] = at.int()


def _measure_sent(row: Tensor, g: Tensor, p: Tensor, sent: Tensor) -> None:
    g, p, sent = g.double(), p.double(), sent.double()
    row[[2, 3, 5]] += torch.stack([sent.dot(sent), sent.dot(p), sent.dot(g)])


def add_up(group: OwnedGroup, steps: Sequence[TiledStep]) -> None:
    """Add what arrived for this owner to its shard, in rank order, and write the message of the largest sums.

    What the own shard has lost or gained counts as sent. If a message is damaged, the bucket's gradient counts as not
    finite, so that no rank keeps the step.

    Args:
        group: The buckets.
        steps: Steps of all of them; those that were not encoded have in ``rest`` what waits.
    """
    if backend.on_gpu(steps[0].gradient, group.message):
        from gravac.kernels.cuda import tiled as on_gpu

        on_gpu.add_up(group, steps)
        return
    for step in steps:
        buffers = _buffers(step)
        whole, own, device = buffers.whole, buffers.own, step.rest.device
        buffers.came.zero_()
        for rank, row in enumerate(buffers.arrived):
            if rank != own:
                buffers.came.index_add_(0, *tiled.read(buffers.layout, row))
        mine = whole.deal(device)[own]
        before, raw = whole.shards(step.rest, mine), whole.shards(step.gradient.float(), mine)
        total = before + buffers.came
        places, values, sent = _chosen(buffers, own, total)
        total.index_copy_(0, places, values - sent)
        at = whole.elements(mine)
        _hold(buffers.places.view(whole.ranks, -1)[own], at[places])
        step.rest.index_copy_(0, at[at < whole.numel], total[at < whole.numel])
        _measure_sent(step.row, raw, before, (-buffers.came).index_add_(0, places, sent))


def decode(group: OwnedGroup, counts: Tensor, steps: Sequence[TiledStep]) -> None:
    """Write the means of what all owners sent; NaN if the step does not count. The next step may begin.

    Args:
        group: The buckets.
        counts: Whether the step counts, bool of shape ``()``.
        steps: Steps of all buckets; the gradients are those that ``encode`` was given. ``senders`` receive 1 where an
            owner sent an element.
    """
    if backend.on_gpu(steps[0].gradient, group.message):
        from gravac.kernels.cuda import tiled as on_gpu

        on_gpu.deliver(group, counts, steps)
        return
    for step in steps:
        _decode(step, bool(counts))


def _decode(step: TiledStep, counts: bool) -> None:
    buffers, out, senders = _buffers(step), step.out, step.senders
    whole, own = buffers.whole, buffers.own
    level = buffers.level.view(-1, 2)
    level[:, 0] = level[:, 1]
    tiles = whole.deal(out.device)
    if step.undone is not None and not counts:
        raw = step.gradient.float()
        step.undone.sub_(torch.where(raw.isfinite(), raw, 0.0))
        mine = whole.elements(tiles[own])
        inside = mine < whole.numel
        step.undone.index_add_(0, mine[inside], buffers.came[inside], alpha=-1.0)
        for owner, row in enumerate(buffers.message):
            places, values = tiled.read(buffers.layout, row)
            step.undone.index_add_(0, whole.elements(tiles[owner])[places], values)
    out.fill_(0.0 if counts else math.nan)
    if senders is not None:
        senders.zero_()
    for owner, row in enumerate(buffers.arrived):
        places, values = tiled.read(buffers.layout, row)
        at = whole.elements(tiles[owner])[places]
        mean = values * (1.0 / whole.ranks) + (0.0 if counts else math.nan)
        out.index_copy_(0, at, mean.to(out.dtype))
        if senders is not None:
            senders.index_fill_(0, at, 1)


def undo(step: TiledStep, added: bool) -> None:
    """Undo a step in ``undone`` whose messages may not have arrived anywhere.

    Args:
        step: Step of a bucket.
        added: Whether ``add_up`` was called.
    """
    buffers = _buffers(step)
    if not added:
        buffers.came.zero_()
        buffers.message[buffers.own].zero_()
    level = buffers.level.view(-1, 2)
    level[:, 1] = level[:, 0]  # nothing is learned from it
    message, arrived = buffers.message, buffers.arrived
    alone = OwnedGroup([buffers], buffers.whole.ranks)
    alone.message.copy_(message)
    try:
        never = torch.zeros((), dtype=torch.bool, device=message.device)
        decode(alone, never, [replace(step, out=torch.empty_like(step.gradient), senders=None)])
    finally:
        buffers.message, buffers.arrived = message, arrived
