"""The largest elements of gradients as one message of fixed size, made and read in a few launches on a device.

What reaches a level is a candidate, as for a ``Sifter``, and a histogram of the candidates says which of them fit into
the message. The rest stays in the residual. The next level follows from the smallest element that was sent.

The gradient is cut into tiles. The message, int32 words, begins with a table: for each tile its first slot, and in one
word the tiles before it and its elements. Then come the positions within tiles: of each the upper bits, in unary, and
the lower ones as they are (Elias 1974, Fano 1971). Then the values: float32, bfloat16, or two bits and two magnitudes
for each block of slots. Tiles may come in any order.

The messages of a few buckets are one, and take as many launches as one bucket's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gravac.kernels import backend
from gravac.kernels.reference import LEVEL_BINS
from gravac.kernels.sifting import SLACK
from gravac.kernels.twobit import quantize_two_bits

Values = Literal["float32", "bfloat16", "twobit"]
"""How values are sent."""
TILE = 4096
"""Elements of a tile."""
BLOCK = 128
"""Slots that share two magnitudes."""
MOST_TILES = 1 << 18
"""Tiles that the table can number."""
LOWER = 1.0 - SLACK
"""The next level, as a share of the smallest element that is sent."""
ROOM = 1.5
"""Room for candidates, next to a ``Sifter``'s: below CF 10 many elements wait just below the level. With 1, a GPT of
0.3 M had 7 % more energy in the residual than exact Top-k at CF 4, with 1.5 it has 1 %."""
_COUNT_BITS = 13
# To encode, and to add up, with each of two buffers, with a residual and without, and to decode.
_MOST_AGAIN = 10
_SHIFT = 17  # bits of a float32 below those of its bin
_KINDS: tuple[Values, ...] = ("float32", "bfloat16", "twobit")


@dataclass(frozen=True)
class TiledLayout:
    """The begins of the parts of a message, in words.

    Attributes:
        numel: Elements of the gradient.
        capacity: Slots, each of one element.
        values: How values are sent.
        tile: Elements of a tile.
        block: Slots that share two magnitudes.
    """

    numel: int
    capacity: int
    values: Values
    tile: int = TILE
    block: int = BLOCK
    tiles: int = field(init=False)
    blocks: int = field(init=False)
    low_bits: int = field(init=False)
    high: int = field(init=False)
    low: int = field(init=False)
    kept: int = field(init=False)
    words: int = field(init=False)

    def __post_init__(self) -> None:
        if not 0 < self.capacity <= self.numel:
            raise ValueError(f"capacity={self.capacity} must be 1 to numel={self.numel}")
        keep = object.__setattr__.__get__(self)
        tiles, blocks = -(-self.numel // self.tile), -(-self.capacity // self.block)
        if tiles > MOST_TILES:
            raise ValueError(f"numel={self.numel} is more than {MOST_TILES} tiles of {self.tile} elements")
        low_bits = min(int(math.log2(self.numel / self.capacity)), int(math.log2(self.tile)))
        high = 2 * tiles
        low = high + _words(self.capacity + tiles * (self.tile >> low_bits))
        kept = low + _words(self.capacity * low_bits)
        sizes = {
            "float32": self.capacity,
            "bfloat16": _words(16 * self.capacity),
            "twobit": blocks + _words(2 * self.capacity),
        }
        for name, value in (
            ("tiles", tiles),
            ("blocks", blocks),
            ("low_bits", low_bits),
            ("high", high),
            ("low", low),
            ("kept", kept),
            ("words", kept + sizes[self.values]),
        ):
            keep(name, value)

    def matches(self, numel: int, capacity: int, values: Values) -> bool:
        """Return whether it is that of such messages."""
        return (self.numel, self.capacity, self.values) == (numel, capacity, values)

    @property
    def kind(self) -> int:
        """Number of ``values``."""
        return _KINDS.index(self.values)

    @property
    def most(self) -> int:
        """Candidates for which there is room."""
        usual = self.capacity * math.pow(self.numel / self.capacity, 2 * SLACK)
        return min(self.numel, int(ROOM * usual) + 1)

    @property
    def nbytes(self) -> int:
        """Bytes of a message."""
        return 4 * self.words


class TiledBuffers:
    """What a bucket keeps on its device for such messages, allocated once. ``TiledGroup`` has the messages themselves.

    Args:
        layout: Layout of the messages.
        device: Device of the tensors.
        count: Messages that the bucket makes. Each has a piece of each tensor.
    """

    message: Tensor
    """int32, shape ``(words,)``: a piece of its group's."""
    arrived: Tensor
    """int32, shape ``(ranks, words)``: pieces of its group's."""
    whole: Any = None
    """Which tiles are whose; None: there are no owners."""

    def __init__(self, layout: TiledLayout, device: torch.device, count: int = 1) -> None:
        self.layout = layout
        self.level = _zeros(device, count * 2, torch.float32)
        """What an element must reach to be a candidate, in this step and, while it lasts, in the next one."""
        self.control = _zeros(device, count * 2, torch.int64)
        self.bins = _zeros(device, count * LEVEL_BINS, torch.int32)
        self.table = _zeros(device, count * 2 * layout.tiles, torch.int32)
        self.candidates = _zeros(device, count * layout.most, torch.int32)
        self.sizes = _zeros(device, count * layout.most, torch.float32)
        self.places = _zeros(device, count * layout.capacity, torch.int32)
        self.values = _zeros(device, count * layout.capacity, torch.float32)
        """What is sent of the running step. Where it is less than the capacity, places come again."""
        self.in_flight: Any = None
        """The collective of a message that is not decoded."""
        self.ready = False
        """Whether there is a level."""

    def sent_places(self) -> Tensor:
        """Return where the residual has lost or gained."""
        return self.places

    def clear(self) -> None:
        """Make the message one that sends nothing."""
        for one in (self.message, self.control, self.bins):
            one.zero_()


class TiledGroup:
    """Buckets whose messages are one, on their device.

    Args:
        members: What the buckets keep. Their messages become pieces of this one's.
        ranks: How many send one.
    """

    def __init__(self, members: Sequence[TiledBuffers], ranks: int) -> None:
        self.members = tuple(members)
        words, device = [one.layout.words for one in members], members[0].level.device
        self.message = _zeros(device, sum(words), torch.int32)
        self.arrived = _zeros(device, ranks * sum(words), torch.int32).view(ranks, -1)
        """A row for each rank."""
        pieces = zip(members, self.message.split(words), self.arrived.split(words, 1), strict=True)
        for one, message, arrived in pieces:
            one.message, one.arrived = message, arrived
        self.again: dict[object, Any] = {}
        """Launches of a GPU that were made before, with these buffers and the buckets'."""

    def remember(self, key: object, launches: Any) -> None:
        """Keep launches. Those with a residual that was replaced would keep it, so all go when there are too many."""
        if len(self.again) >= _MOST_AGAIN:
            self.again.clear()
        self.again[key] = launches


@dataclass(slots=True)
class TiledStep:
    """The tensors of one bucket in one step.

    Attributes:
        buffers: What the bucket keeps.
        gradient: float32 or bfloat16 of shape ``(n,)``.
        out: Receives the mean: of the gradient's dtype, shape ``(n,)``; may be the gradient itself.
        residual: float32, shape ``(n,)``; may be ``rest`` itself; None if it is zero.
        rest: Receives what is not sent of gradient + residual: float32, shape ``(n,)``.
        row: The bucket's sums are added, float64; see ``step_sums``.
        undone: ``rest``, if the device undoes in it a step that does not count; None: it does not.
        senders: Receives how many ranks sent each element, uint8 of shape ``(n,)``; None: it is not wanted.
    """

    buffers: TiledBuffers
    gradient: Tensor
    out: Tensor
    residual: Tensor | None
    rest: Tensor
    row: Tensor
    undone: Tensor | None = None
    senders: Tensor | None = None


def _zeros(device: torch.device, count: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(count, dtype=dtype, device=device)


def first_level(buffers: TiledBuffers, g: Tensor, residual: Tensor | None) -> None:
    """Set the level by sorting gradient + residual once."""
    p = g.float().nan_to_num(0.0, 0.0, 0.0)
    sizes = (p if residual is None else p + residual).abs()
    least = sizes.topk(buffers.layout.capacity, sorted=True).values[-1:]
    buffers.level.copy_(least * LOWER)
    buffers.ready = True


def encode(group: TiledGroup, steps: Sequence[TiledStep]) -> None:
    """Write the messages, leave what is not sent of gradient + residual, and measure. ``decode`` follows.

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
    buffers, raw = step.buffers, step.gradient.float()
    value = torch.where(raw.isfinite(), raw, 0.0)
    if step.residual is not None:
        value = value + step.residual
    places, after = chosen(buffers.layout, buffers.level[0], value)
    values = value.index_select(0, places)
    step.rest.copy_(value)
    sent = write(buffers.layout, buffers.message, places, values)
    step.rest.index_copy_(0, places, values - sent)
    _measure(step.row, raw, value, sent, values, raw.index_select(0, places))
    buffers.level[1] = after
    if places.numel():
        buffers.places.fill_(int(places[0]))
        buffers.places[: places.numel()] = places.int()


def decode(group: TiledGroup, counts: Tensor, steps: Sequence[TiledStep], own: int) -> None:
    """Write the means of what arrived, summed in rank order; NaN if the step does not count. The next step may begin.

    Args:
        group: The buckets.
        counts: Whether the step counts, bool of shape ``()``.
        steps: Steps of all buckets; the gradients are those that ``encode`` was given.
        own: This rank.
    """
    if backend.on_gpu(steps[0].gradient, group.arrived):
        from gravac.kernels.cuda import tiled as on_gpu

        on_gpu.decode(group, counts, steps, own)
        return
    for step in steps:
        _decode(step, bool(counts), own)


def _decode(step: TiledStep, counts: bool, own: int) -> None:
    buffers, out, senders = step.buffers, step.out, step.senders
    layout, share = buffers.layout, 1.0 / buffers.arrived.shape[0]
    buffers.level[0] = buffers.level[1]
    found = [read(layout, row) for row in buffers.arrived]
    if step.undone is not None and not counts:
        raw = step.gradient.float()
        step.undone.sub_(torch.where(raw.isfinite(), raw, 0.0)).index_add_(0, *found[own])
    out.fill_(0.0 if counts else math.nan)
    if senders is not None:
        senders.zero_()
    for places, values in found:
        out.index_copy_(0, places, (out.index_select(0, places).float() + values * share).to(out.dtype))
        if senders is not None:
            senders.index_add_(0, places, torch.ones_like(places, dtype=torch.uint8))


def undo(step: TiledStep) -> None:
    """Undo a step in ``undone``, whose message may not have arrived anywhere: ``decode`` of this rank's own alone."""
    buffers = step.buffers
    message, arrived = buffers.message, buffers.arrived
    buffers.level[1:] = buffers.level[:1]  # nothing is learned from it
    alone = TiledGroup([buffers], 1)
    alone.arrived.copy_(message)
    try:
        never = torch.zeros((), dtype=torch.bool, device=message.device)
        decode(alone, never, [replace(step, out=torch.empty_like(step.gradient), senders=None)], 0)
    finally:
        buffers.message, buffers.arrived = message, arrived


def _words(bits: int) -> int:
    return -(-bits // 32)


def chosen(layout: TiledLayout, level: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places of what fits into the message, ascending, and the next level."""
    capacity = layout.capacity
    reached = ((value.abs() >= level) & (value != 0.0)).nonzero().flatten()
    bits, least = value[reached].abs().view(torch.int32), int(level.view(torch.int32)) >> _SHIFT
    counted = torch.bincount(((bits >> _SHIFT) - least).clamp(0, LEVEL_BINS - 1), minlength=LEVEL_BINS)
    above = counted.flip(0).cumsum(0).flip(0)  # in this bin and those above it
    first = int((above > capacity).sum())  # the first bin of which all are sent
    edge = (least + first) << _SHIFT if first else 0
    candidates, sizes = reached[: layout.most], bits[: layout.most]
    # Of the bin below, each tile sends its share of what is left.
    bottom = edge - (1 << _SHIFT) if first else 0
    beside, tile = ((sizes >= bottom) & (sizes < edge)).long(), candidates // layout.tile
    between = torch.zeros(layout.tiles, dtype=torch.int64, device=tile.device).index_add_(0, tile, beside)
    spare = capacity - (int(above[first]) if first < LEVEL_BINS else 0)
    extra = torch.minimum(spare * between // max(int(counted[first - 1]), 1), between)
    number = beside.cumsum(0) - (between.cumsum(0) - between)[tile]
    places = candidates[(sizes >= edge) | ((beside > 0) & (number <= extra[tile]))][:capacity]
    energy = float(value.double().dot(value.double()))
    if not 0.0 < energy < math.inf:
        return places, level
    after = level * LOWER
    if first:
        after = torch.tensor(edge, dtype=torch.int32, device=level.device).view(torch.float32)
    if not reached.numel() or first == LEVEL_BINS:  # as if magnitudes were exponential
        guess = math.log(layout.numel / capacity) * math.sqrt(energy / layout.numel * 0.5)
        after = torch.full_like(after, guess)
    return places, after * LOWER


def _measure(row: Tensor, g: Tensor, p: Tensor, sent: Tensor, values: Tensor, at: Tensor) -> None:
    g, p, sent, values, at = (one.double() for one in (g, p, sent, values, at))
    row.add_(torch.stack([g.dot(g), p.dot(p), sent.dot(sent), sent.dot(values), p.dot(g), sent.dot(at)]))


def write(layout: TiledLayout, message: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """Write places, ascending, and values into the message, and return the values as sent."""
    slots = places.numel()
    message.zero_()
    tile = places // layout.tile
    counts = torch.bincount(tile, minlength=layout.tiles)
    first = counts.cumsum(0) - counts
    order = torch.arange(layout.tiles, dtype=torch.int64, device=places.device)
    message[: 2 * layout.tiles].view(-1, 2).copy_(torch.stack([first, (order << _COUNT_BITS) | counts], 1))
    inside, slot = places % layout.tile, torch.arange(slots, dtype=torch.int64, device=places.device)
    _or(message[layout.high : layout.low], (inside >> layout.low_bits) + slot + tile * _upper(layout), 1, 1)
    mask = (1 << layout.low_bits) - 1
    _or(message[layout.low : layout.kept], slot * layout.low_bits, inside & mask, layout.low_bits)
    kept = message[layout.kept :]
    if layout.values == "float32":
        kept[:slots] = values.view(torch.int32)
        return values
    if layout.values == "bfloat16":
        kept.view(torch.bfloat16)[:slots] = values.bfloat16()
        return values.bfloat16().float()
    means, codes = quantize_two_bits(values, layout.block)
    block = min(layout.block, max(1, slots))
    kept.view(torch.bfloat16)[: means.numel()] = means
    kept[layout.blocks :].view(torch.uint8)[: codes.numel()] = codes
    large, positive = _codes(codes, slots)
    size = means.float().view(-1, 2)[slot // block].gather(1, large.long().unsqueeze(1)).flatten()
    return torch.where(positive, size, -size)


def _codes(codes: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Return which slots have the upper magnitude, and which values are not below zero."""
    shifts = torch.arange(0, 8, 2, dtype=torch.int64, device=codes.device)
    each = ((codes.unsqueeze(1) >> shifts) & 3).flatten()[:slots]
    return each >= 2, (each & 1) == 1


def read(layout: TiledLayout, message: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places, int64, and values, float32, of a message."""
    entries = message[: layout.high].view(-1, 2).long()
    first, counts, order = (
        entries[:, 0],
        entries[:, 1] & ((1 << _COUNT_BITS) - 1),
        entries[:, 1] >> _COUNT_BITS,
    )
    tiles = torch.arange(layout.tiles, dtype=torch.int64, device=message.device)
    tile = torch.repeat_interleave(tiles, counts)
    slots = tile.numel()
    number = torch.arange(slots, dtype=torch.int64, device=message.device) - (counts.cumsum(0) - counts)[tile]
    slot = first[tile] + number
    every = _bits(message[layout.high : layout.low])
    # The n-th bit that is set after those of the tiles before is that of the tile's n-th element.
    begin = (first + order * _upper(layout))[tile]
    before = torch.cat([every.new_zeros(1), every.cumsum(0)])
    where = every.nonzero().flatten()
    upper = where[before[begin] + number] - begin - number if slots else begin
    lower = _field(message[layout.low : layout.kept], slot * layout.low_bits, layout.low_bits)
    places = tile * layout.tile + (upper << layout.low_bits) + lower
    kept = message[layout.kept :]
    if layout.values == "float32":
        return places, kept[slot].view(torch.float32)
    if layout.values == "bfloat16":
        return places, kept.view(torch.bfloat16)[slot].float()
    means = kept[: layout.blocks].view(torch.bfloat16).float().view(-1, 2)
    large, positive = _codes(kept[layout.blocks :].view(torch.uint8), layout.capacity)
    size = means[slot // layout.block].gather(1, large[slot].long().unsqueeze(1)).flatten()
    return places, torch.where(positive[slot], size, -size)


def _upper(layout: TiledLayout) -> int:
    return layout.tile >> layout.low_bits


def _or(words: Tensor, bit: Tensor, values: Tensor | int, width: int) -> None:
    """Add fields of ``width`` bits, at bits that are 0."""
    if not width or not bit.numel():
        return
    wide = (values if isinstance(values, Tensor) else torch.full_like(bit, values)) << (bit & 31)
    total = torch.zeros(words.numel() + 1, dtype=torch.int64, device=words.device)
    total.index_add_(0, bit >> 5, wide & 0xFFFFFFFF).index_add_(0, (bit >> 5) + 1, wide >> 32)
    words.copy_(total[:-1].to(torch.int32))


def _field(words: Tensor, bit: Tensor, width: int) -> Tensor:
    if not width or not bit.numel():
        return torch.zeros_like(bit)
    known = torch.cat([words.long() & 0xFFFFFFFF, words.new_zeros(1).long()])
    both = known[bit >> 5] | (known[(bit >> 5) + 1] << 32)
    return (both >> (bit & 31)) & ((1 << width) - 1)


def _bits(words: Tensor) -> Tensor:
    """Return the bits of words, lowest first, int64."""
    return (
        ((words.unsqueeze(1) >> torch.arange(32, dtype=torch.int64, device=words.device)) & 1)
        .flatten()
        .long()
    )
